"""Events of a request in progress: texts of its choices, and their ends."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.serving.chat_response import Choice, TokenLogprob, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text of a choice that no further token changes, and the log-probabilities of the tokens up to it."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """End of a choice, which is in the log."""

    choice: Choice
    sent: str
    """Content that its deltas had."""
    rest: tuple[TokenLogprob, ...] | None
    """Log-probabilities that no delta had."""
    usage: Usage


Event = Delta | Ended
