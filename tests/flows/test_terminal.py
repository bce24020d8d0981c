from __future__ import annotations

import logging
import sys

import pytest

from flows.terminal import _Plain
from grpo.errors import DataError


@pytest.mark.parametrize(("kind", "shown"), [(DataError, False), (KeyError, True)])
def test_only_errors_that_say_what_to_do_are_shown_without_their_traceback(kind: type[Exception], shown: bool):
    """The record itself keeps it, for the handler that sends it to the server."""
    try:
        raise kind("no column reward")
    except kind:
        record = logging.LogRecord("prefect", logging.ERROR, "", 0, "it ended", (), sys.exc_info())
    assert ("Traceback" in _Plain(logging.Formatter()).format(record)) is shown
    assert record.exc_info is not None
