"""Conversion of scores that the user's code returns: numbers of Python, NumPy and torch, truth values, one per turn.

0.5   np.float32(0.5)   torch.tensor(0.5)   →  0.5
True                                        →  1.0
[0.5, 0.25], with two turns of the agent    →  0.75, of which 0.5 is the first turn's and 0.25 the second's
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from grpo.errors import RewardError
from grpo.user_failures import shown
from grpo.user_numbers import as_number


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
