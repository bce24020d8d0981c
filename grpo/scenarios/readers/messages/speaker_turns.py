"""Turns of a dialogue between a user and an agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any


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


def separate_texts(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Parts of a message in which an empty line separates texts that follow each other, as a page shows blocks."""
    separated: list[Mapping[str, Any]] = []
    for part in parts:
        if part.get("type") == "text" and separated and separated[-1].get("type") == "text":
            separated.append({"type": "text", "text": "\n\n"})
        separated.append(part)
    return separated
