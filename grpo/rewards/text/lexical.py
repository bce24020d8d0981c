"""Lexical rewards: length, shared keywords, variety of words, and distance from the other samples of the group."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grpo.errors import ConfigError, Unscored
from grpo.messages import Message
from grpo.rewards.reward import Episode, GroupReward, RewardContext, RewardFunction, RewardResult
from grpo.rewards.text.fluency import variety
from grpo.rewards.text.language import ngrams, words
from grpo.rewards.text.reply import reply_texts

_MIN_CONTENT_LETTERS = 4


class ConcisenessReward(RewardFunction):
    """1 for replies of up to `target` words, falling linearly to 0 at twice that. An empty reply scores 0."""

    name = "conciseness"

    def __init__(self, *, weight: float = 1.0, target: int = 30) -> None:
        super().__init__(weight=weight)
        if target < 1:
            raise ConfigError(f"conciseness target {target} must be at least 1 word")
        self.target = target

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean over replies: 15 words of 10 → 0.5."""
        lengths = [len(words(reply)) for reply in reply_texts(turns)]
        scores = [min(1.0, max(0.0, 2 - length / self.target)) if length else 0.0 for length in lengths]
        return RewardResult(score=sum(scores) / len(scores) if scores else 0.0)


class KeywordReward(RewardFunction):
    """Keywords shared with the user's last turn: full score at `enough` different ones, no more for stuffing."""

    name = "keywords"

    def __init__(self, *, weight: float = 1.0, enough: int = 2) -> None:
        super().__init__(weight=weight)
        if enough < 1:
            raise ConfigError(f"keywords enough {enough} must be at least 1 word")
        self.enough = enough

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean over replies of min(1, shared content words / enough). Words of under four letters do not count."""
        asked: set[str] = set()
        scores: list[float] = []
        for turn in turns:
            content = {word for word in words(turn.content) if len(word) >= _MIN_CONTENT_LETTERS}
            if turn.role == "user":
                asked = content
            elif turn.role == "assistant":
                scores.append(min(1.0, len(asked & content) / self.enough))
        return RewardResult(score=sum(scores) / len(scores) if scores else 0.0)


class VarietyReward(RewardFunction):
    """Share of different words among all words of a reply: repetition scores low, an empty reply 0."""

    name = "variety"

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean over replies: "no no no yes" → 2/4."""
        counted = [words(reply) for reply in reply_texts(turns)]
        scores = [len(set(reply)) / len(reply) if reply else 0.0 for reply in counted]
        return RewardResult(score=sum(scores) / len(scores) if scores else 0.0)


class SimilarityAwareReward(GroupReward):
    """1 − mean overlap with the other samples of the group, times the variety of the conversation's own words.

    Overlap is the Jaccard index of runs of up to three words: identical samples score 0, samples without a common
    phrase 1. A group of one is scored only by its variety.
    """

    name = "similarity_aware"

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Compare the agent's words of each episode with the agent's words of every other episode."""
        texts = [tuple(word for reply in reply_texts(episode.turns) for word in words(reply)) for episode in episodes]
        phrases = [frozenset(run for size in (1, 2, 3) for run in ngrams(text, size)) for text in texts]
        results: list[RewardResult | Unscored] = []
        for index, text in enumerate(texts):
            others = [_jaccard(phrases[index], other) for k, other in enumerate(phrases) if k != index]
            distinct = 1 - fmean(others) if others else 1.0
            own = variety(text) if text else 0.0
            results.append(RewardResult(score=distinct * own, breakdown={"distinct": distinct, "variety": own}))
        return results


def _jaccard(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    return len(a & b) / len(a | b) if a | b else 1.0
