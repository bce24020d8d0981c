"""Records of a function of the user's own code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from grpo.errors import DataError
from grpo.scenarios.data_errors import error_text, excerpt, try_call
from grpo.scenarios.readers.source_files import LONGEST_LINE
from grpo.scenarios.records import SourceRecord
from grpo.user_objects import bind

MOST_RECORDS = 10_000_000
"""Most records of a function; one with more is taken for infinite."""


def read_python(reference: str, options: Mapping[str, Any], most: int = MOST_RECORDS) -> Iterator[SourceRecord]:
    """Call `package.module:function` and read the items that it yields; one that JSON cannot hold is a problem.

    Raises `ConfigError` for a missing function and for options that its signature does not take, and `DataError` for a
    function whose records do not end.
    """
    generate = bind(reference, options, given=0)
    for number, item in enumerate(generate(), start=1):
        if number > most:
            raise DataError(f"{reference} does not end after {most} records; let it return")
        yield _record(reference, number, item)


def _record(reference: str, number: int, item: Any) -> SourceRecord:
    problem = None
    if not isinstance(item, dict):
        problem = f"not a dict: {type(item).__name__}"
    else:
        text = try_call(lambda: json.dumps(item, allow_nan=False, default=str))
        if isinstance(text, Exception):
            problem = f"cannot be stored as JSON: {error_text(text)}"
        elif len(text) > LONGEST_LINE:
            problem = f"over-long record: {len(text)} characters, at most {LONGEST_LINE}"
    if problem is None:
        return SourceRecord(source=reference, line=number, data=item)
    return SourceRecord(source=reference, line=number, data=None, raw=excerpt(item), problem=problem)
