"""Turns of a dialogue between a user and an agent."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby


def merge_speaker_turns(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join consecutive lines of one speaker to a turn, without blank lines.

    [("a", "Hi."), ("a", "Well?"), ("b", "Yes.")] → [("a", "Hi.\\nWell?"), ("b", "Yes.")]
    """
    return [
        (speaker, "\n".join(text for _, text in turn if text.strip()))
        for speaker, turn in groupby(lines, key=lambda line: line[0])
    ]


def user_turns_and_replies(lines: Iterable[tuple[str, str]], user: str) -> tuple[list[str], list[str]]:
    """The user's turns and the agent's replies to them, without the agent's opening if there is one.

    Reply k answers turn k. The last turn may have no reply.
    """
    turns = merge_speaker_turns(lines)
    if turns and turns[0][0] != user:
        turns = turns[1:]
    return [text for speaker, text in turns if speaker == user], [text for speaker, text in turns if speaker != user]
