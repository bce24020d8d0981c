"""Dialogues of two: who said what, turn by turn."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby


def merge_speaker_turns(said: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Lines that one speaker says in a row are one turn; blank lines add nothing to it.

    [("a", "Hi."), ("a", "Well?"), ("b", "Yes.")] → [("a", "Hi.\\nWell?"), ("b", "Yes.")]
    """
    return [
        (speaker, "\n".join(text for _, text in lines if text.strip()))
        for speaker, lines in groupby(said, key=lambda line: line[0])
    ]


def user_turns_and_replies(said: Iterable[tuple[str, str]], user: str) -> tuple[list[str], list[str]]:
    """The user's turns, and the agent's replies to them; what the agent says before the user is left out.

    Reply k answers turn k; the last turn may have none.
    """
    turns = merge_speaker_turns(said)
    if turns and turns[0][0] != user:
        turns = turns[1:]
    return [text for speaker, text in turns if speaker == user], [text for speaker, text in turns if speaker != user]
