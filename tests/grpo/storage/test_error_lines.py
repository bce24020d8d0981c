from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from grpo.errors import DataError
from grpo.storage.credentials import MaskedRecord
from grpo.storage.error_lines import CountingHandler, one_line

ESCAPE = "\x1b[2J\x1b]0;owned\x07"


def log(*, at: float = 0.0, message: str = "a turn failed", error: Exception | None = None, level: int = 40) -> Any:
    """A record of the logger `served` at a time in seconds."""
    info = None if error is None else (type(error), error, error.__traceback__)
    record = MaskedRecord("served", level, __file__, 1, message, (), info)
    record.created = at
    return record


def written(*records: logging.LogRecord) -> list[str]:
    """Lines of a handler with these records, without their time."""
    return [line.partition(" served: ")[2] for line in lines(*records)]


def lines(*records: logging.LogRecord) -> list[str]:
    """Lines of a handler with these records."""
    stream = io.StringIO()
    handler = CountingHandler(stream)
    for record in records:
        handler.emit(record)
    handler.close()
    return stream.getvalue().splitlines()


def raised(error: Exception) -> Exception:
    try:
        raise error
    except (ValueError, KeyError, DataError) as caught:
        return caught


def in_a_library() -> Exception:
    """An error whose innermost frames are of the standard library."""
    try:
        json.loads("{")
    except ValueError as error:
        return error
    raise AssertionError


def test_an_error_is_one_line_with_its_type_message_and_place():
    """The place is the innermost one that is not of a library; line breaks of the message are gone."""
    (line,) = written(log(error=raised(ValueError("no\nsuch   order"))))
    assert line.startswith("a turn failed: ValueError: no such order (test_error_lines.py:")
    assert line.endswith(", raised)")
    assert one_line(in_a_library()).endswith(", in_a_library)")


def test_a_repeated_error_is_counted():
    """Three within a minute, then another error: two lines for the first one, the second with the number."""
    same, other = raised(ValueError("dead")), raised(KeyError("x"))
    records = (log(at=0, error=same), log(at=1, error=same), log(at=59, error=same), log(at=61, error=other))
    assert [line.split(" (")[0] for line in written(*records)] == [
        "a turn failed: ValueError: dead",
        "2 more times in 60 s: a turn failed: ValueError: dead",
        "a turn failed: KeyError: 'x'",
    ]


def test_errors_that_differ_in_the_address_of_an_object_are_counted_together():
    """uvloop names the transport of each connection; a number of another form makes another error."""
    errors = [raised(ValueError(f"{name} is closed")) for name in ("<TCP 0x7f01>", "<TCP 0x7F02>", "<TCP 3>")]
    assert [line.split(" (")[0] for line in written(*(log(error=error) for error in errors))] == [
        "a turn failed: ValueError: <TCP 0x7f01> is closed",
        "a turn failed: ValueError: <TCP 3> is closed",
        "1 more times in 60 s: a turn failed: ValueError: <TCP 0x…> is closed",
    ]


def test_a_repeated_warning_of_uvicorn_is_counted():
    """It has one for each request that it cannot read; a warning of the supervisor, say, is a line each time."""
    warnings = [log(level=30, message="Invalid HTTP request received.") for _ in range(3)]
    assert len(written(*warnings)) == 3
    for warning in warnings:
        warning.name = "uvicorn.error"
    assert [line.partition(" uvicorn.error: ")[2] for line in lines(*warnings)] == [
        "Invalid HTTP request received.",
        "2 more times in 60 s: Invalid HTTP request received.",
    ]


def test_the_count_is_written_at_the_end():
    """Also where no other record follows."""
    same = raised(ValueError("dead"))
    assert len(written(log(error=same))) == 1
    assert [line[:12] for line in written(log(error=same), log(at=5, error=same))] == ["a turn faile", "1 more times"]


def test_information_is_not_counted():
    """Two equal lines below ERROR are two lines."""
    assert written(log(level=20, message="loaded"), log(level=20, message="loaded")) == ["loaded", "loaded"]


@pytest.mark.parametrize("kind", [ValueError, DataError])
def test_escape_sequences_of_others_are_escaped(kind: type[Exception]):
    """In the message of an error, in an argument of a log line and in the error itself, where it is one of ours."""
    (line,) = written(log(error=raised(kind(ESCAPE + "\n2026-01-01 INFO all is well"))))
    assert "\x1b" not in line
    assert "\\x1b[2J" in line
    record = MaskedRecord("served", 40, __file__, 1, "no version: %s", (ESCAPE + "\nINFO all is well",), None)
    assert record.getMessage() == "no version: \\x1b[2J\\x1b]0;owned\\x07\\nINFO all is well"
    assert "\x1b" not in str(DataError(ESCAPE))


def test_the_traceback_that_a_library_logs_as_a_text_is_its_last_line():
    """uvicorn logs a start that failed so."""
    text = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nStorageError: no salt\n'
    assert written(log(message=text)) == ["StorageError: no salt"]
