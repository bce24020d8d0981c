from __future__ import annotations

import asyncio

import pytest

from grpo.rewards import SimilarityAwareReward
from grpo.rewards.reward import Episode, RewardContext, RewardResult
from tests.grpo.rewards.judging import conversation, judged


def _scores(*replies: str) -> list[float]:
    context = RewardContext(scenario_id="s", category="c", stop="terminated")
    episodes = [Episode(turns=conversation("Hi", reply), context=context) for reply in replies]
    results = asyncio.run(SimilarityAwareReward().compute_group(episodes))
    return [result.score for result in results if isinstance(result, RewardResult)]


def test_identical_siblings_score_zero_and_distinct_ones_score_one():
    """Overlap 1 and 0."""
    assert _scores("We sell tea", "We sell tea", "We sell tea") == [0.0, 0.0, 0.0]
    assert _scores("We sell tea", "Nobody is here", "Look over there") == [1.0, 1.0, 1.0]


def test_one_twin_among_three_costs_half():
    """Mean overlap with two siblings: (1 + 0) / 2; the third has none."""
    assert _scores("We sell tea", "We sell tea", "Nobody is here") == [0.5, 0.5, 1.0]


def test_an_only_child_is_judged_for_its_own_repetition():
    """One run of three words, eight times: nothing is left."""
    assert judged(SimilarityAwareReward(), "Hi", "We sell tea").score == 1.0
    assert judged(SimilarityAwareReward(), "Hi", "no no no no no no no no no no").score == pytest.approx(0.0)
    assert judged(SimilarityAwareReward(), "Hi", "").score == 0.0
