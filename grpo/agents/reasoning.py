"""Reasoning of a model before its answer: <think>…</think>, as in DeepSeek-R1 (arXiv 2501.12948)."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split_reasoning(text: str) -> tuple[str | None, str]:
    """Split a reply into reasoning and answer; unfinished reasoning leaves an empty answer.

    '<think>x</think>y' → 'x', 'y'     'x</think>y' → 'x', 'y'     the template may have opened it
    '<think>x'          → 'x', ''      'y'          → None, 'y'
    """
    before, closed, after = text.partition(CLOSE)
    if closed:
        return before.strip().removeprefix(OPEN).strip(), after.strip()
    if before.lstrip().startswith(OPEN):
        return before.strip().removeprefix(OPEN).strip(), ""
    return None, text


def stable_prefix(text: str, *, reasoning: bool) -> str:
    """Prefix of the answer that no further token can change, from the beginning of a reply.

    Held back: possible reasoning, trailing white space, and an incomplete character.
    """
    if reasoning:
        _, closed, text = text.partition(CLOSE)
        if not closed:
            return ""
    return text.lstrip().rstrip("\ufffd").rstrip()
