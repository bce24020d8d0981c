from __future__ import annotations

import logging
import re
import sys
from io import StringIO

import pytest
from rich.console import Console

from flows.terminal import _Plain, print_measurement
from grpo.errors import DataError
from grpo.evaluation.measurement import MeasurementDocument


@pytest.mark.parametrize(("kind", "shown"), [(DataError, False), (KeyError, True)])
def test_only_errors_that_say_what_to_do_are_shown_without_their_traceback(kind: type[Exception], shown: bool):
    """The record itself keeps it, for the handler that sends it to the server."""
    try:
        raise kind("no column reward")
    except kind:
        record = logging.LogRecord("prefect", logging.ERROR, "", 0, "it ended", (), sys.exc_info())
    assert ("Traceback" in _Plain(logging.Formatter()).format(record)) is shown
    assert record.exc_info is not None


def test_success_in_k_tries_is_printed_with_its_intervals():
    """One row for each k: in at least one try, and in each."""
    shares = {"mean": 0.75, "low": 0.5, "high": 1.0, "count": 20}
    standing = {"name": "all", "success": shares, "reward": None}
    measurement = {
        "policy": "ba5e",
        "confidence": 0.95,
        "overall": standing,
        "by_category": (),
        "by_difficulty": (),
        "pass_at_k": (shares, {**shares, "mean": 0.9}),
        "pass_hat_k": (shares, {**shares, "mean": 0.625}),
        "episodes": 40,
        "failed_share": 0.0,
        "truncated_share": 0.0,
        "said": 12.5,
    }
    about = {"name": "desk", "model": "base", "created": "", "scenarios": 20, "scenarios_digest": "", "config": ""}
    document = MeasurementDocument.model_validate({**about, "code_digest": "", "measurement": measurement})
    console = Console(width=120, file=StringIO())
    print_measurement(console, document)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    rows = [re.findall(r"[^\s│]+", line) for line in printed.splitlines()]
    (row,) = [cells for cells in rows if cells[:1] == ["2"]]
    assert row == ["2", "20", "0.900", "[0.500,", "1.000]", "0.625", "[0.500,", "1.000]"]
