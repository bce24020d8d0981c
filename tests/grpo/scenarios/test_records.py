"""Sides that do not leak."""

from __future__ import annotations

from grpo.scenarios.records import SourceRecord, declare_splits


def record(*turns: str, goal: str = "") -> SourceRecord:
    """A scenario whose user says this."""
    return SourceRecord(source="s", line=1, data={"user_responses": list(turns), "goal": goal})


def test_a_heldout_text_that_was_trained_on_is_not_declared_heldout() -> None:
    """Case and punctuation do not tell texts apart; another turn or goal does."""
    train = [record("Hello there."), record(goal="Buy.")]
    heldout = [record("hello there"), record("hello", "there!"), record("Hello there.", goal="x"), record(goal="buy")]
    found = list(declare_splits(train, heldout))
    splits = [found_record.data.get("split") for found_record in found if found_record.data]
    assert splits == ["train", "train", None, None, "heldout", None]


def test_what_could_not_be_read_passes_through() -> None:
    """It is counted later."""
    broken = SourceRecord(source="s", line=2, data=None, problem="broken")
    assert list(declare_splits([broken], [broken])) == [broken, broken]
