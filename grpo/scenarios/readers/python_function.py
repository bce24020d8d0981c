"""Records from a function of the user's own code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from grpo.data_errors import LONGEST_LINE, error_text, excerpt, try_call
from grpo.errors import DataError
from grpo.scenarios.readers.files.filled_nulls import without_filled_nulls
from grpo.scenarios.records import SourceRecord
from grpo.user_objects import bind

MOST_RECORDS = 10_000_000
"""Most records of a function. A function with more is assumed to be infinite."""


def read_python(reference: str, options: Mapping[str, Any], most: int = MOST_RECORDS) -> Iterator[SourceRecord]:
    """Call `package.module:function` and read the items that it yields. If JSON cannot hold one, it has a problem.

    Raises `ConfigError` if the function is missing or its signature does not take the options, and `DataError` if it
    does not end after `most` records.
    """
    generate = bind(reference, options, given=0)
    for number, item in enumerate(generate(), start=1):
        if number > most:
            raise DataError(f"{reference} does not end after {most} records. Let it return")
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
        return SourceRecord(source=reference, line=number, data=without_filled_nulls(item))
    return SourceRecord(source=reference, line=number, data=None, raw=excerpt(item), problem=problem)
