"""Lists and objects in the cells of tables, as JSON or as Python prints them."""

from __future__ import annotations

import ast
from typing import Any

from pydantic_core import from_json

from grpo.strict_json import MAX_CHARACTERS, as_json

_ADVICE = ". What Python or NumPy has printed here cannot be read. Write the column with json.dumps"


def cell_value(text: str, what: str) -> Any:
    """Value of a JSON text, or of a list or object as Python prints it, which `to_csv` of pandas writes.

        [{'role': 'user', 'content': "What's new?"}]  →  [{"role": "user", "content": "What's new?"}]

    Python would also read `['a' 'b']`, the list of two texts as NumPy prints it, as one text. So a text is only taken
    for Python's if Python prints its value in the same way. If it is neither,
    raises `ValueError`, which begins with `what`, e.g. `tools are`.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        printed = _printed(text.strip())
        if printed is None:
            advice = _ADVICE if text.lstrip().startswith(("['", "[{'", "{'")) else ""
            raise ValueError(f"{what} not JSON: {str(error).replace('line 1 ', '')}{advice}") from error
        return printed


def _printed(text: str) -> Any:
    """Value of a list or object as Python prints it. None if the text is something else, or very long."""
    if not text.startswith(("[", "{")) or len(text) > MAX_CHARACTERS:
        return None
    try:
        value = ast.literal_eval(text)
        return as_json(value) if repr(value) == text else None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
