"""Conversion of scores that the user's code returns: numbers of Python, NumPy and torch, truth values, one per turn.

0.5   np.float32(0.5)   torch.tensor(0.5)   →  0.5
True                                        →  1.0
[0.5, 0.25], with two turns of the agent    →  0.75, of which 0.5 is the first turn's and 0.25 the second's
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Complex, Real
from typing import Any

from grpo.errors import RewardError
from grpo.user_failures import shown


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


def as_numbers(value: Any) -> tuple[float, ...] | None:
    """The values of a list, tuple, or one-dimensional array or tensor, or None if it does not hold only numbers."""
    if not isinstance(value, list | tuple) and len(getattr(value, "shape", ())) != 1:
        return None
    numbers = [as_number(entry) for entry in value]
    return None if None in numbers else tuple(number for number in numbers if number is not None)


def per_turn(values: Sequence[float], turns: int, name: str) -> tuple[float, ...]:
    """The values themselves. Raises `RewardError` unless there is one, and finite, for each turn of the agent."""
    if len(values) != turns:
        raise RewardError(
            f"reward {name} returned {len(values)} numbers for {turns} turns of the agent. Return one number, or one "
            "for each turn"
        )
    for value in values:
        if not math.isfinite(value):
            raise RewardError(f"reward {shown(value)} of a turn is not finite. Raise an error or return a number")
    return tuple(values)
