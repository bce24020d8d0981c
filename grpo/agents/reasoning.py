"""Reasoning of a model before its answer, while the reply is generated."""

from __future__ import annotations

from grpo.messages import END_OF_THINK


def stable_prefix(text: str, *, reasoning: bool) -> str:
    """Prefix of the answer that no further token can change, from the beginning of a reply.

    Held back: possible reasoning, trailing white space, and an incomplete character.
    """
    if reasoning:
        _, closed, text = text.partition(END_OF_THINK)
        if not closed:
            return ""
    return text.lstrip().rstrip("\ufffd").rstrip()
