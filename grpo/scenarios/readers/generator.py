"""A Python generator of records."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from grpo.errors import DataError
from grpo.scenarios.readers.record import Record


def read_generator(function: str) -> Iterator[Record]:
    """Call `package.module:function` and take what it yields; what it raises stops the run.

    Raises `DataError` where there is no such function.
    """
    module_name, _, name = function.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise DataError(
            f"generator {function}: module {module_name} cannot be imported: {error}; "
            "install its package or correct the source's function"
        ) from error
    generate = getattr(module, name, None)
    if not callable(generate):
        raise DataError(f"generator {function}: module {module_name} has no function {name}")
    for number, item in enumerate(generate(), start=1):
        if isinstance(item, dict):
            yield Record(source=function, line=number, data=item)
        else:
            problem = f"not a dict: {type(item).__name__}"
            yield Record(source=function, line=number, data=None, raw=str(item), problem=problem)
