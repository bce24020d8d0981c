"""Numbers that the user's code returns: of Python, NumPy and torch, but no texts and no lists."""

from __future__ import annotations

import math
from numbers import Complex, Real
from typing import Any


def as_number(value: Any) -> float | None:
    """The value as a float, or None if it is not a single number.

    Arrays and tensors count only if they have no dimension, because one with a single entry may be a list.
    """
    if getattr(value, "shape", ()) != () or (isinstance(value, Complex) and not isinstance(value, Real)):
        return None
    if isinstance(value, (str, bytes)) or getattr(getattr(value, "dtype", None), "kind", "") in ("U", "S"):
        return None  # a text of NumPy has `__float__`
    if not hasattr(value, "__float__"):
        return None
    detached = value.detach() if hasattr(value, "detach") else value  # torch warns of a gradient that is lost
    try:
        return float(detached)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def finite_number(value: Any) -> float | None:
    """The value as a float, or None if it is not a single finite number."""
    number = as_number(value)
    return number if number is not None and math.isfinite(number) else None
