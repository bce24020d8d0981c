"""Turns of a dialogue."""

from __future__ import annotations

from grpo.scenarios.readers.messages.speaker_turns import merge_speaker_turns, user_turns_and_replies


def test_consecutive_lines_are_one_turn() -> None:
    """Blank lines are left out; a turn of blank lines is an empty turn."""
    lines = [("a", "Hi."), ("a", " "), ("a", "Well?"), ("b", " "), ("a", "Hm.")]
    assert merge_speaker_turns(lines) == [("a", "Hi.\nWell?"), ("b", ""), ("a", "Hm.")]


def test_an_opening_of_the_agent_is_left_out() -> None:
    """The last turn may have no reply."""
    lines = [("agent", "Hello."), ("user", "Hi."), ("agent", "Yes?"), ("user", "Bye.")]
    assert user_turns_and_replies(lines, "user") == (["Hi.", "Bye."], ["Yes?"])
