"""Layout of calls in JSON as a template prints them: the texts around their names and arguments.

A parser does not need it, because it reads JSON in any layout. A grammar allows only what the template prints, so that
a constrained reply is one that the model could have written itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

EXAMPLE_NAME = "qzname"
"""Name of the call that a format is derived from. Some families repeat it before a call."""
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    r"""Texts around calls in JSON.

    [\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {}},\n    {…}\n]     Command, with numbered calls
    """

    opening: str = "["
    """Text before the first call of a list."""
    between: str = ", "
    closing: str = "]"
    before_name: str | None = None
    """Text from the beginning of a call to its name. Numbers in it vary. None if the name comes first."""
    before_arguments: str | None = None
    end: str = "}"


def layout_of(text: str, two: str, *, key: str) -> Layout | None:
    """Layout of calls in JSON, from the text of one call with the argument `key`, and from a text with two calls.

    None if the arguments are not an object.
    """
    name, first = text.find(json.dumps(EXAMPLE_NAME)), text.find("{")
    arguments = text.rfind("{", 0, text.find(json.dumps(key)))
    if not first < name < arguments:
        return None
    _, stop = _DECODER.raw_decode(text, arguments)
    _, end = _DECODER.raw_decode(text, first)
    closed = "".join(character for character in text[stop:end] if character == "}")
    second = two.find("{", end)
    is_list = text.startswith("[") and second >= 0
    return Layout(
        opening=text[:first] if is_list else "[",
        between=two[end:second] if is_list else ", ",
        closing=text[end:] if is_list else "]",
        before_name=text[first:name],
        before_arguments=text[name + len(json.dumps(EXAMPLE_NAME)) : arguments],
        end=closed,
    )
