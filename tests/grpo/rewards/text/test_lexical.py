from __future__ import annotations

import asyncio

import pytest

from grpo.messages import Message, ToolCall
from grpo.rewards import SimilarityAwareReward
from grpo.rewards.reward import Episode, RewardContext, RewardResult
from tests.grpo.rewards.scoring import agent, conversation, judge, scored, user


@pytest.mark.parametrize(("count", "expected"), [(0, 0.0), (1, 1.0), (10, 1.0), (15, 0.5), (20, 0.0), (99, 0.0)])
def test_conciseness_falls_beyond_its_target(count: int, expected: float):
    """Target 10 words: full up to 10, half at 15, 0 at 20, and 0 for an empty reply."""
    assert judge("conciseness", [agent("word " * count)], target=10) == pytest.approx(expected)


def test_keywords_reward_shared_words_and_not_stuffing():
    """Two shared words are enough; twenty repeats of one are one."""
    request = user("my kettle has a broken handle")
    assert judge("keywords", [request, agent("sorry about the broken kettle")]) == 1.0
    assert judge("keywords", [request, agent("kettle " * 20)]) == 0.5
    assert judge("keywords", [request, agent("how nice")]) == 0.0


def test_variety_punishes_repetition():
    """no no no yes → 2/4; empty → 0"""
    assert judge("variety", [agent("no no no yes")]) == 0.5
    assert judge("variety", [agent("")]) == 0.0


def test_tool_calls_are_not_replies():
    """A turn that only calls a tool is not a reply."""
    calling = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={}),))
    assert judge("variety", [calling, agent("fine")]) == 1.0


def _scores(*replies: str) -> list[float]:
    context = RewardContext(scenario_id="s", category="c", stop="terminated")
    episodes = [Episode(turns=conversation("Hi", reply), context=context) for reply in replies]
    results = asyncio.run(SimilarityAwareReward().compute_group(episodes))
    return [result.score for result in results if isinstance(result, RewardResult)]


def test_identical_siblings_score_zero_and_distinct_ones_score_one():
    """Overlap 1 and 0."""
    assert _scores("We sell tea", "We sell tea", "We sell tea") == [0.0, 0.0, 0.0]
    assert _scores("We sell tea", "Nobody is here", "Look over there") == [1.0, 1.0, 1.0]


def test_one_identical_sample_of_two_costs_half():
    """Mean overlap with two siblings: (1 + 0) / 2; the third has none."""
    assert _scores("We sell tea", "We sell tea", "Nobody is here") == [0.5, 0.5, 1.0]


def test_a_group_of_one_is_scored_by_its_variety():
    """One run of three words, eight times: nothing is left."""
    assert scored(SimilarityAwareReward(), "Hi", "We sell tea").score == 1.0
    assert scored(SimilarityAwareReward(), "Hi", "no no no no no no no no no no").score == pytest.approx(0.0)
    assert scored(SimilarityAwareReward(), "Hi", "").score == 0.0
