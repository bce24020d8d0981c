"""Sides that do not leak."""

from __future__ import annotations

from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import declare_sides


def record(*turns: str, goal: str = "") -> Record:
    """A scenario whose user says this."""
    return Record(source="s", line=1, data={"user_responses": list(turns), "goal": goal})


def test_a_heldout_text_that_was_trained_on_is_not_declared_heldout() -> None:
    """Case and punctuation do not tell texts apart; another turn or goal does."""
    train = [record("Hello there."), record(goal="Buy.")]
    heldout = [record("hello there"), record("hello", "there!"), record("Hello there.", goal="x"), record(goal="buy")]
    found = list(declare_sides(train, heldout))
    sides = [found_record.data.get("side") for found_record in found if found_record.data]
    assert sides == ["train", "train", None, None, "heldout", None]


def test_what_could_not_be_read_passes_through() -> None:
    """It is counted later."""
    broken = Record(source="s", line=2, data=None, problem="broken")
    assert list(declare_sides([broken], [broken])) == [broken, broken]
