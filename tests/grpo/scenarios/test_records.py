"""Records of a source: declared splits without leakage."""

from __future__ import annotations

from grpo.scenarios.records import SourceRecord, declare_splits


def record(*turns: str, goal: str = "") -> SourceRecord:
    """A scenario with these user turns."""
    return SourceRecord(source="s", line=1, data={"user_responses": list(turns), "goal": goal})


def test_a_heldout_text_that_was_trained_on_is_not_declared_heldout() -> None:
    """Texts that differ only in case and punctuation are equal; another turn or goal makes another text."""
    train = [record("Hello there."), record(goal="Buy.")]
    heldout = [record("hello there"), record("hello", "there!"), record("Hello there.", goal="x"), record(goal="buy")]
    converted = list(declare_splits(train, heldout))
    splits = [item.data.get("split") for item in converted if item.data]
    assert splits == ["train", "train", None, None, "heldout", None]


def test_an_unreadable_record_is_passed_on() -> None:
    """Ingestion counts it later."""
    broken = SourceRecord(source="s", line=2, data=None, problem="broken")
    assert list(declare_splits([broken], [broken])) == [broken, broken]
