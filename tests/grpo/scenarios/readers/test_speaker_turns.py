"""Turns of a dialogue."""

from __future__ import annotations

from grpo.scenarios.readers.speaker_turns import merge_speaker_turns, user_turns_and_replies


def test_lines_in_a_row_are_one_turn() -> None:
    """Blank lines add nothing; a turn of blank lines is an empty turn."""
    said = [("a", "Hi."), ("a", " "), ("a", "Well?"), ("b", " "), ("a", "Hm.")]
    assert merge_speaker_turns(said) == [("a", "Hi.\nWell?"), ("b", ""), ("a", "Hm.")]


def test_the_user_speaks_first() -> None:
    """What the agent says before is left out; the last turn may have no reply."""
    said = [("agent", "Hello."), ("user", "Hi."), ("agent", "Yes?"), ("user", "Bye.")]
    assert user_turns_and_replies(said, "user") == (["Hi.", "Bye."], ["Yes?"])
