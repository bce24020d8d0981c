"""Events of a request in progress: texts of its choices, and the end of each choice."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.serving.protocol.chat_response import Choice, TokenLogprob, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text of a choice that later tokens cannot change, and the log-probabilities of tokens since the last delta."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """End of a choice, sent after the choice is in the log."""

    choice: Choice
    sent: str
    """Content that was sent in deltas."""
    rest: tuple[TokenLogprob, ...] | None
    """Log-probabilities that were not sent in a delta."""
    usage: Usage


Event = Delta | Ended
