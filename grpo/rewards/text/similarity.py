"""A reward for saying something else than one's siblings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grpo.errors import Unscored
from grpo.rewards.reward import Episode, GroupReward, RewardResult
from grpo.rewards.text.fluency import variety
from grpo.rewards.text.language import ngrams, words
from grpo.rewards.text.reply import agent_replies


class SimilarityAwareReward(GroupReward):
    """1 − mean overlap with the siblings' replies, times how little the conversation repeats itself.

    Overlap is that of the runs of up to three words (Jaccard): siblings that all say the same score 0, ones with no
    phrase in common 1. An only child is judged for its own repetition alone.
    """

    name = "similarity_aware"

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """See the class."""
        said = [_said(episode) for episode in episodes]
        phrases = [frozenset(run for size in (1, 2, 3) for run in ngrams(text, size)) for text in said]
        results: list[RewardResult | Unscored] = []
        for index, text in enumerate(said):
            others = [_overlap(phrases[index], other) for k, other in enumerate(phrases) if k != index]
            distinct = 1 - fmean(others) if others else 1.0
            own = variety(text) if text else 0.0
            results.append(RewardResult(score=distinct * own, breakdown={"distinct": distinct, "variety": own}))
        return results


def _said(episode: Episode) -> tuple[str, ...]:
    return tuple(word for one in agent_replies(episode.turns, episode.context) for word in words(one.reply))


def _overlap(one: frozenset[tuple[str, ...]], two: frozenset[tuple[str, ...]]) -> float:
    return len(one & two) / len(one | two) if one | two else 1.0
