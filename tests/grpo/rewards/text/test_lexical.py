from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from grpo.config.rewards import RewardComponent
from grpo.messages import Message, ToolCall
from grpo.rewards import SimilarityAwareReward
from grpo.rewards.catalog import make_reward
from grpo.rewards.reward import Episode, RewardContext, RewardResult
from grpo.trajectories import Outcome
from tests.grpo.rewards.judging import conversation, judged


def user(text: str) -> Message:
    return Message(role="user", content=text)


def agent(text: str) -> Message:
    return Message(role="assistant", content=text)


def tool(text: str) -> Message:
    return Message(role="tool", content=text)


def judge(kind: str, turns: Sequence[Message], *, outcome: Outcome | None = None, **options: object) -> float:
    reward = make_reward([RewardComponent(kind=kind, weight=1.0, options=options)])  # type: ignore[arg-type]
    context = RewardContext(scenario_id="s", category="c", stop="terminated", outcome=outcome)
    return asyncio.run(reward.compute_reward(turns, context)).score


@pytest.mark.parametrize(("count", "expected"), [(0, 0.0), (1, 1.0), (10, 1.0), (15, 0.5), (20, 0.0), (99, 0.0)])
def test_conciseness_falls_beyond_its_target(count: int, expected: float):
    """Target 10 words: full up to 10, half at 15, nothing at 20, and nothing for silence."""
    assert judge("conciseness", [agent("word " * count)], target=10) == pytest.approx(expected)


def test_keywords_reward_taking_up_the_customers_words_and_not_stuffing():
    """Two shared words are enough; twenty repeats of one are one."""
    said = user("my kettle has a broken handle")
    assert judge("keywords", [said, agent("sorry about the broken kettle")]) == 1.0
    assert judge("keywords", [said, agent("kettle " * 20)]) == 0.5
    assert judge("keywords", [said, agent("how nice")]) == 0.0


def test_variety_punishes_repetition():
    """no no no yes → 2/4; empty → 0"""
    assert judge("variety", [agent("no no no yes")]) == 0.5
    assert judge("variety", [agent("")]) == 0.0


def test_calls_are_not_judged_as_words():
    """A turn that only calls a tool is no empty reply."""
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


def test_one_twin_among_three_costs_half():
    """Mean overlap with two siblings: (1 + 0) / 2; the third has none."""
    assert _scores("We sell tea", "We sell tea", "Nobody is here") == [0.5, 0.5, 1.0]


def test_an_only_child_is_judged_for_its_own_repetition():
    """One run of three words, eight times: nothing is left."""
    assert judged(SimilarityAwareReward(), "Hi", "We sell tea").score == 1.0
    assert judged(SimilarityAwareReward(), "Hi", "no no no no no no no no no no").score == pytest.approx(0.0)
    assert judged(SimilarityAwareReward(), "Hi", "").score == 0.0
