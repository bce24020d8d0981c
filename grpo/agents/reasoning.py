"""What a model thinks before it answers: <think>…</think>, as DeepSeek-R1 writes it (arXiv 2501.12948)."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split_reasoning(text: str) -> tuple[str | None, str]:
    """Reasoning and answer of a reply; thinking that was cut off leaves an empty answer.

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
    """The beginning of the answer that no further token can change, from the beginning of a reply.

    What may still be thinking, white space at the end, and an unfinished character are held back.
    """
    if reasoning:
        _, closed, text = text.partition(CLOSE)
        if not closed:
            return ""
    return text.lstrip().rstrip("\ufffd").rstrip()
