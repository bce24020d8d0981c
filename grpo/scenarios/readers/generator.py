"""Records of a Python generator."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

from grpo.errors import DataError
from grpo.scenarios.data_errors import error_text, excerpt, try_call
from grpo.scenarios.readers.source_files import LONGEST_LINE
from grpo.scenarios.records import SourceRecord

MOST_RECORDS = 10_000_000
"""Most records of a generator; one with more is taken for infinite."""


def read_generator(function: str, most: int = MOST_RECORDS) -> Iterator[SourceRecord]:
    """Call `package.module:function` and read the items that it yields; one that JSON cannot hold is a problem.

    Raises `DataError` for a missing function and for a generator that does not end.
    """
    module_name, _, name = function.partition(":")
    module = try_call(lambda: importlib.import_module(module_name))
    if isinstance(module, Exception):
        raise DataError(
            f"generator {function}: module {module_name} cannot be imported: {error_text(module)}; "
            "install its package, fix it, or correct the source's function"
        ) from module
    generate = getattr(module, name, None)
    if not callable(generate):
        raise DataError(f"generator {function}: module {module_name} has no function {name}")
    for number, item in enumerate(generate(), start=1):
        if number > most:
            raise DataError(f"generator {function} does not end after {most} records; let it return")
        yield _record(function, number, item)


def _record(function: str, number: int, item: Any) -> SourceRecord:
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
        return SourceRecord(source=function, line=number, data=item)
    return SourceRecord(source=function, line=number, data=None, raw=excerpt(item), problem=problem)
