"""The view of minigrid's worlds in words, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the extra minigrid is not installed")
pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
from grpo.environments.gymnasium_text.minigrid_text import MinigridText, describe  # noqa: E402

EMPTY, WALL, DOOR, KEY, BALL = 1, 2, 4, 5, 6
RED, GREEN, LOCKED = 0, 1, 2


def view(**cells: tuple[int, int, int]) -> np.ndarray:
    """A view of 7 × 7 empty cells but for these, `c2r4` is column 2 and row 4."""
    image = np.zeros((7, 7, 3), np.uint8)
    image[:, :, 0] = EMPTY
    for place, cell in cells.items():
        image[int(place[1]), int(place[3])] = cell
    return image


def test_places_are_counted_from_the_agent():
    """It is in column 3 and row 6: column 2, row 4 is 2 ahead and 1 left; column 5, row 6 is 2 right."""
    image = view(c2r4=(BALL, GREEN, 0), c5r6=(DOOR, RED, LOCKED), c3r1=(WALL, 5, 0))
    assert describe(image) == "You see: locked red door 2 right; green ball 2 ahead 1 left; wall 5 ahead."


def test_what_the_agent_carries_is_in_its_own_cell():
    """And nothing else is in sight."""
    assert describe(view(c3r6=(KEY, RED, 0))) == "You see: nothing. You carry: red key."


def test_the_digest_is_of_the_state_and_not_of_the_way_to_it():
    """Left and right again is the same state after two steps; a door that is open is another one."""
    env = MinigridText(gymnasium.make("BabyAI-OpenRedDoor-v0"))
    env.reset(seed=0)
    start = env.state_digest()
    env.step("left")
    turned = env.state_digest()
    env.step("right")
    assert (env.state_digest(), turned) == (start, turned)
    assert turned != start
