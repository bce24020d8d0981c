"""Levels of a generator, and their two splits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from grpo.environments.levels import Level, draw_splits
from grpo.environments.seeded_worlds import Part
from grpo.errors import DataError


class Dice(Level):
    sides: int

    @property
    def generator(self) -> str:
        return f"d{self.sides}"


def _draw(level: Dice, part: Part, number: int, drawn: set[str]) -> Iterator[dict[str, Any]]:
    """The next numbers that were not drawn before."""
    for _ in range(number):
        digest = str(len(drawn))
        drawn.add(digest)
        yield {"id": f"{level.category}-{digest}", "split": part}


def test_levels_are_drawn_in_their_order_and_share_what_was_drawn():
    """Two and one of the first level, none and one of the second: the fourth scenario is not the first again."""
    levels = [Dice(sides=6, train=2, heldout=1), Dice(sides=6, name="other", heldout=1)]
    assert [(record["id"], record["split"]) for record in draw_splits(levels, _draw)] == [
        ("d6-0", "train"),
        ("d6-1", "train"),
        ("d6-2", "heldout"),
        ("other-3", "heldout"),
    ]


def test_a_negative_number_of_scenarios_is_refused():
    """The error names the field."""
    with pytest.raises(ValidationError, match="heldout"):
        Dice(sides=6, heldout=-1)


def test_two_levels_with_different_options_need_two_names():
    """The same options may be listed twice, for example once for each split."""
    twice = [Dice(sides=6, train=1), Dice(sides=6, heldout=1)]
    assert len(list(draw_splits(twice, _draw))) == 2
    with pytest.raises(DataError, match=r"two levels are called d6, with options {} and {'loaded': True}\. Give one"):
        list(draw_splits([Dice(sides=6, train=1), Dice(sides=6, options={"loaded": True}, heldout=1)], _draw))
