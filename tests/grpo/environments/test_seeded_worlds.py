"""Worlds from seeds, without a package that makes them."""

from __future__ import annotations

import pytest

from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.seeded_worlds import demonstrate, draw_worlds
from grpo.environments.text_game import NoWorldError
from grpo.errors import DataError


def start(seed: int) -> tuple[str | None, str]:
    """Worlds 0 to f in turn, of which 0 to 3 are held out; no world from odd seeds."""
    if seed % 2:
        raise NoWorldError("odd")
    return f"{seed // 2 % 16:x}", f"world {seed}"


def test_a_part_has_different_worlds_of_its_split_and_seeds_without_a_world_are_passed_over():
    """Twelve of the sixteen are not held out; 1,000,000 / 2 is 0 modulo 16."""
    drawn: set[str] = set()
    training = list(draw_worlds(start, "train", 3, name="game x", drawn=drawn))
    heldout = list(draw_worlds(start, "heldout", 2, name="game x", drawn=drawn))
    assert [(world.seed, world.digest, world.split) for world in training] == [
        (8, "4", "train"),
        (10, "5", "train"),
        (12, "6", "train"),
    ]
    assert [(world.seed, world.digest) for world in heldout] == [(1_000_000, "0"), (1_000_002, "1")]
    with pytest.raises(
        DataError, match=r"game x has only 9 different worlds for train, and 10 are wanted\. Lower that"
    ):
        list(draw_worlds(start, "train", 10, name="game x", drawn=drawn))


def test_demonstrations_that_never_succeed_are_an_error():
    """A conversation verifies nothing, so that no episode succeeds."""
    records = ({"id": f"s{k}", "user_responses": ["hi"]} for k in range(2_000))
    with pytest.raises(DataError, match="level x: 1000 demonstrations in a row do not succeed within the limit of tur"):
        list(demonstrate(ConversationEnvironment(), records, lambda scenario: ["hello"], 1, name="level x"))
