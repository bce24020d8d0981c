"""Faults of a document against its model: each once, at the place where it stands in the document."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_EXPECTED = "Input should be "
_LONGEST = 80  # characters of a value that is shown


def faults(error: ValidationError, document: object, *, secret: bool = False) -> list[str]:
    """One line for each place that cannot be used: place, rule and, unless the document is secret, value.

    pydantic names the members of a union in its places, and adds faults that follow from others: of a list without a
    valid item it also tells that it is too short, and of a union every member that does not fit. Here

        scenarios.sources.0.path: Field required

    stands alone, and the members of a union are alternatives on one line.
    """
    places: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for problem in error.errors(include_url=False):
        places.setdefault(_place(problem, document), []).append(problem)
    deepest = {place: found for place, found in places.items() if not _explained(place, places)}
    return [_line(place, problems, secret=secret) for place, problems in deepest.items()]


def _place(problem: ErrorDetails, document: object) -> tuple[str, ...]:
    """The part of a fault's location that stands in the document, or is missing there: union members are not."""
    place: list[str] = []
    node: Any = document
    for part in problem["loc"]:
        if _has(node, part):
            node = node[part]
        elif problem["type"] != "missing" or part != problem["loc"][-1]:
            continue
        place.append(str(part))
    return tuple(place)


def _has(node: object, part: int | str) -> bool:
    """Whether a key or index stands in a part of the document."""
    if isinstance(node, dict):
        return part in node
    return isinstance(node, (list, tuple)) and isinstance(part, int) and part < len(node)


def _explained(place: tuple[str, ...], places: dict[tuple[str, ...], list[ErrorDetails]]) -> bool:
    """Whether a fault further down is the cause of those at this place."""
    return any(len(other) > len(place) and other[: len(place)] == place for other in places)


def _line(place: tuple[str, ...], problems: list[ErrorDetails], *, secret: bool) -> str:
    messages = list(dict.fromkeys(problem["msg"].removeprefix("Value error, ") for problem in problems))
    first, *others = messages
    rule = ", or ".join([first, *(message.removeprefix(_EXPECTED) for message in others)])
    value = problems[0]["input"]
    hidden = secret or isinstance(value, dict) or problems[0]["type"] == "missing"
    shown = "" if hidden else f" (got {shortened(value)})"
    return f"{'.'.join(place) or 'settings that do not agree'}: {rule}{shown}"


def shortened(value: object) -> str:
    """The beginning of a value as Python writes it."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
