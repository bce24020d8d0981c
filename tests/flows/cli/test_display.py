from __future__ import annotations

import io
import logging
import re

import pytest
from rich.console import Console

from flows.cli.console import PlainConsole
from flows.cli.display import _OnceFilter, live, print_diagnosis, print_measurement
from grpo import progress
from grpo.evaluation.schema import EvaluationDocument


@pytest.mark.parametrize(
    ("logger", "message", "shown"),
    [
        (
            "prefect.task_runs",
            "Finished in state Failed('Task run encountered an exception AddressError: no model')",
            False,
        ),
        (
            "prefect.task_runs",
            "Task run failed with exception: AddressError('no model') - Retries are exhausted",
            False,
        ),
        ("prefect.flow_runs", "Encountered exception during execution: AddressError('no model')", False),
        ("prefect.flow_runs", "Crash detected! Request to the server timed out", False),
        ("prefect.task_runs", "Error encountered when computing cache key - result will not be persisted.", True),
        ("prefect.events.clients", "Unable to connect to 'ws://127.0.0.1:4200/api/events/in'.", True),
        ("tasks.train", "Finished in state of rest", True),
    ],
)
def test_the_end_of_a_run_is_left_to_the_command(logger: str, message: str, shown: bool):
    """It prints the error once, at its own end; other records are shown."""
    record = logging.LogRecord(logger, logging.ERROR, "", 0, message, (), None)
    assert _OnceFilter().filter(record) is shown


def test_events_that_a_server_did_not_take_are_told_of_once():
    """Each of them is tried for a minute; the first line says which address is meant."""
    record = logging.LogRecord("prefect.events.clients", logging.WARNING, "", 0, "Unable to connect", (), None)
    once = _OnceFilter()
    assert [once.filter(record) for _ in range(3)] == [True, False, False]


def test_each_event_that_was_not_taken_is_not_a_traceback():
    """Prefect's thread logs one for each of them, on a logger with a handler of its own."""
    with live(PlainConsole(file=io.StringIO())):
        logger = logging.getLogger("prefect._internal.concurrency")
        assert not logger.filter(logging.LogRecord(logger.name, logging.ERROR, "", 0, "failed to process", (), None))


def test_progress_shows_a_stage_whose_text_looks_like_markup():
    """A stage that is computed again is named with its reason, which may hold anything."""
    shown = io.StringIO()
    console = PlainConsole(file=shown, width=200)
    with live(console):
        progress.report("train again: artifact [/x] is damaged", 0, 1)
    assert "train again: artifact [/x] is damaged 0/1" in shown.getvalue()


def test_a_diagnosis_shows_the_extra_of_each_package():
    """The remedy can be copied as it is."""
    from flows.local.checks import CheckResult, DoctorReport

    shown = io.StringIO()
    remedy = "pip install 'grpo[vllm]'"
    finding = CheckResult(area="extras", name="vllm", state="absent", found="not [/here]", remedy=remedy)
    print_diagnosis(PlainConsole(file=shown, width=200), DoctorReport(findings=(finding,)))
    assert remedy in shown.getvalue()
    assert "not [/here]" in shown.getvalue()


def test_success_in_k_tries_is_printed_with_its_intervals():
    """One row for each k: in at least one try, and in each."""
    shares = {"mean": 0.75, "low": 0.5, "high": 1.0, "count": 20}
    slice_metrics = {"name": "all", "success": shares, "reward": None}
    measurement = {
        "policy": "ba5e",
        "confidence": 0.95,
        "overall": slice_metrics,
        "by_category": (),
        "by_difficulty": (),
        "pass_at_k": (shares, {**shares, "mean": 0.9}),
        "pass_hat_k": (shares, {**shares, "mean": 0.625}),
        "episodes": 40,
        "failed_share": 0.0,
        "truncated_share": 0.0,
        "mean_completion_tokens": 12.5,
    }
    about = {"name": "desk", "model": "base", "created": "", "scenarios": 20, "scenarios_digest": "", "config": ""}
    document = EvaluationDocument.model_validate({**about, "code_digest": "", "measurement": measurement})
    console = Console(width=120, file=io.StringIO())
    print_measurement(console, document)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    rows = [re.findall(r"[^\s│]+", line) for line in printed.splitlines()]
    (row,) = [cells for cells in rows if cells[:1] == ["2"]]
    assert row == ["2", "20", "0.900", "[0.500,", "1.000]", "0.625", "[0.500,", "1.000]"]
