"""Values at places in records.

`a.b` is the key `a.b`, or else `b` of the object `a`. An object may be JSON in a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.scenarios.readers.files.json_cells import cell_value


def value_at(data: Mapping[str, Any], place: str) -> Any:
    """Value at a place. None if there is none."""
    if place in data:
        return data[place]
    first, dot, rest = place.partition(".")
    while dot:
        inner = parsed(data.get(first))
        if isinstance(inner, Mapping):
            return value_at(inner, rest)
        more, dot, rest = rest.partition(".")
        first = f"{first}.{more}"
    return None


def without(data: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The record without the value at a place. What stands next to it in an object stays."""
    if place in data:
        return {key: value for key, value in data.items() if key != place}
    first, dot, rest = place.partition(".")
    while dot:
        inner = parsed(data.get(first))
        if isinstance(inner, Mapping):
            return {**data, first: without(inner, rest)}
        more, dot, rest = rest.partition(".")
        first = f"{first}.{more}"
    return dict(data)


def is_there(data: Mapping[str, Any], place: str) -> bool:
    """True if the record has this key, or the first key of this place."""
    return place in data or place.partition(".")[0] in data or value_at(data, place) is not None


def without_nulls(value: Any) -> Any:
    """The value without null fields, because a struct column has every field, null if a row lacks it."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def parsed(value: Any) -> Any:
    """A list or object, also if it is JSON in a text. Other values stay as they are."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return cell_value(value, "it is")
    except ValueError:
        return value
