"""Rewards that read the agent's words."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.rewards.text.language import words

_MIN_CONTENT_LETTERS = 4


def _replies(turns: Sequence[Message]) -> list[str]:
    return [turn.content for turn in turns if turn.role == "assistant" and not turn.tool_calls]


class ConcisenessReward(RewardFunction):
    """1 for replies of up to `target` words, falling linearly to 0 at twice that; an empty reply scores 0."""

    name = "conciseness"

    def __init__(self, *, weight: float = 1.0, target: int = 30) -> None:
        super().__init__(weight=weight)
        if target < 1:
            raise ConfigError(f"conciseness target {target} must be at least 1 word")
        self.target = target

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean over replies: 15 words of 10 → 0.5."""
        lengths = [len(words(reply)) for reply in _replies(turns)]
        scores = [min(1.0, max(0.0, 2 - length / self.target)) if length else 0.0 for length in lengths]
        return RewardResult(score=sum(scores) / len(scores) if scores else 0.0)


class KeywordReward(RewardFunction):
    """Whether each reply takes up the customer's words: full score at `enough` different ones, no more for stuffing."""

    name = "keywords"

    def __init__(self, *, weight: float = 1.0, enough: int = 2) -> None:
        super().__init__(weight=weight)
        if enough < 1:
            raise ConfigError(f"keywords enough {enough} must be at least 1 word")
        self.enough = enough

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean over replies of min(1, shared content words / enough); words of under four letters do not count."""
        said: set[str] = set()
        scores: list[float] = []
        for turn in turns:
            content = {word for word in words(turn.content) if len(word) >= _MIN_CONTENT_LETTERS}
            if turn.role == "user":
                said = content
            elif turn.role == "assistant":
                scores.append(min(1.0, len(said & content) / self.enough))
        return RewardResult(score=sum(scores) / len(scores) if scores else 0.0)


class VarietyReward(RewardFunction):
    """Share of different words among all words of a reply: repetition scores low, an empty reply 0."""

    name = "variety"

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean over replies: "no no no yes" → 2/4."""
        counted = [words(reply) for reply in _replies(turns)]
        scores = [len(set(reply)) / len(reply) if reply else 0.0 for reply in counted]
        return RewardResult(score=sum(scores) / len(scores) if scores else 0.0)
