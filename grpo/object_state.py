"""State of an object of the user's own, as JSON, so that rewards can read an episode's environment.

    Wordle().guess("crane")     {"class": "words:Wordle", "attributes": {"reward": 0.4, "seen": {"(set)": ["crane"]}}}

If JSON cannot hold an attribute, such as a connection, it is left out and named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from grpo.errors import DataError, RewardError
from grpo.user_objects import load_object

_PLAIN = (str, int, float, bool, type(None))
_TUPLE, _SET, _FROZENSET, _PAIRS = "(tuple)", "(set)", "(frozenset)", "(pairs)"


def save_state(instance: object) -> dict[str, Any]:
    """Class and attributes of an object, except attributes in `__slots__`.

    Raises `DataError` if the class cannot be imported by its name.
    """
    kind = type(instance)
    if "." in kind.__qualname__:
        raise DataError(
            f"class {kind.__module__}.{kind.__qualname__} cannot be imported by rewards, because it is defined "
            "inside a function or class. Move it to the top of its module"
        )
    attributes, unsaved = {}, {}
    for name, value in getattr(instance, "__dict__", {}).items():
        try:
            attributes[name] = _encode(value)
        except (TypeError, RecursionError):  # another type, or a value that holds itself
            unsaved[name] = type(value).__name__
    return {"class": f"{kind.__module__}:{kind.__name__}", "attributes": attributes, "unsaved": unsaved}


def load_state(state: Mapping[str, Any]) -> Any:
    """Object of the saved class with the saved attributes. Its `__init__` is not called.

    If an attribute was not saved, reading it raises `RewardError`, even if the class has a default for it.
    """
    kind = load_object(state["class"])
    lost = {name: property(partial(_refuse, kind.__name__, name, type_)) for name, type_ in state["unsaved"].items()}
    instance = object.__new__(type(kind.__name__, (kind,), lost) if lost else kind)
    vars(instance).update({name: _decode(value) for name, value in state["attributes"].items()})
    return instance


def _refuse(kind: str, name: str, held: str, instance: object) -> None:
    raise RewardError(
        f"{kind}.{name} held {held}, which is not kept after an episode: keep what the reward reads as numbers, texts, "
        "lists, dicts or sets"
    )


def _encode(value: Any) -> Any:
    """Value in JSON, with marks for tuples, sets and keys that are not text. Raises `TypeError` for another type."""
    if type(value) in _PLAIN:
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError("JSON has finite numbers")
        return value
    if type(value) is list:
        return [_encode(part) for part in value]
    if type(value) is tuple:
        return {_TUPLE: [_encode(part) for part in value]}
    if type(value) in (set, frozenset):
        mark = _SET if type(value) is set else _FROZENSET
        return {mark: sorted((_encode(part) for part in value), key=json.dumps)}
    if type(value) is dict:
        if all(type(key) is str for key in value) and not value.keys() & {_TUPLE, _SET, _FROZENSET, _PAIRS}:
            return {key: _encode(part) for key, part in value.items()}
        return {_PAIRS: [[_encode(key), _encode(part)] for key, part in value.items()]}
    raise TypeError(f"{type(value).__name__} is not JSON")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TUPLE}:
        return tuple(map(_decode, value[_TUPLE]))
    if value.keys() == {_SET}:
        return set(map(_decode, value[_SET]))
    if value.keys() == {_FROZENSET}:
        return frozenset(map(_decode, value[_FROZENSET]))
    if value.keys() == {_PAIRS}:
        return {_decode(key): _decode(part) for key, part in value[_PAIRS]}
    return {key: _decode(part) for key, part in value.items()}
