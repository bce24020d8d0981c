from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo.config.rewards import RewardComponent
from grpo.errors import ArtifactError, ConfigError, RewardError, Unscored
from grpo.messages import Message
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.learned.neural import NeuralReward, create_neural_reward_function
from grpo.rewards.learned.training import train_on_pairs
from grpo.rewards.reward import RewardContext, RewardFunction
from tests.grpo.rewards.learned.polite_replies import conversation, message, preferences

CONTEXT = RewardContext(scenario_id="s", category="c", stop="terminated")


def score(reward: RewardFunction, turns: Sequence[Message]) -> float:
    return asyncio.run(reward.compute_reward(turns, CONTEXT)).score


def test_a_trained_reward_prefers_good_replies_in_new_conversations(polite: Path):
    """Each load of the folder gives the same scores to the last bit."""
    rewards = [NeuralReward(model=polite) for _ in range(2)]
    assert score(rewards[0], conversation(9001, polite=True)) > score(rewards[0], conversation(9001, polite=False))
    for seed in range(5):
        turns = conversation(seed, polite=True)
        assert score(rewards[0], turns) == score(rewards[0], turns) == score(rewards[1], turns)


def test_a_reward_that_may_be_guessing_is_refused(tmp_path: Path):
    """Random labels: the interval of its accuracy holds ½."""
    pairs = preferences(120, by_lot=True)
    card = train_on_pairs(pairs[:80], pairs[80:], tmp_path, split="the last 40")
    assert card.heldout is not None
    assert card.heldout.low <= 0.5
    with pytest.raises(RewardError, match="may be guessing"):
        NeuralReward(model=tmp_path)


def test_the_config_reaches_both_learned_rewards(polite: Path):
    """By kind and options; a conversation without a reply is not scored."""
    reward = make_composite_reward(
        [
            RewardComponent(kind="neural", weight=0.5, options={"model": str(polite)}),
            RewardComponent(kind="safety", weight=0.5),
        ]
    )
    answer = message("assistant", "Your order 4471 was shipped yesterday and will arrive on Friday.")
    result = asyncio.run(reward.compute_reward([message("user", "Where is my order 4471?"), answer], CONTEXT))
    assert set(result.breakdown) == {"neural", "safety"}
    with pytest.raises(Unscored, match="has no reply of the agent"):
        asyncio.run(reward.compute_reward([message("user", "hello?")], CONTEXT))


def test_the_online_reward_learns_from_observed_rewards():
    """200 rewarded conversations: above 80 % of 100 new pairs are in order, and the error falls."""
    reward = create_neural_reward_function(embedding_dim=16, hidden_dim=16, learning_rate=3e-3, update_frequency=50)
    before = score(reward, conversation(1, polite=True))
    for seed in range(200):
        reward.observe(conversation(seed, polite=seed % 2 == 0), reward=float(seed % 2 == 0))
    right = sum(
        score(reward, conversation(seed, polite=True)) > score(reward, conversation(seed + 1, polite=False))
        for seed in range(5000, 5200, 2)
    )
    assert before == 0.5
    assert len(reward.losses) == 4
    assert reward.losses[-1] < reward.losses[0]
    assert right > 80


def test_the_online_reward_trains_at_its_update_frequency():
    """Scoring changes nothing; with an update every three observations the third one does."""
    reward = create_neural_reward_function(embedding_dim=4, hidden_dim=4, learning_rate=1e-2, update_frequency=3)
    turns = conversation(0, polite=True)
    for _ in range(2):
        reward.observe(turns, 1.0)
        assert score(reward, turns) == 0.5
    reward.observe(turns, 1.0)
    assert score(reward, turns) > 0.5


def test_the_online_reward_is_seeded_and_continues_from_its_folder(tmp_path: Path):
    """Two rewards of one seed agree, and a third that loads the folder; other sizes and an unmeasured reward fail."""
    rewards = [create_neural_reward_function(8, 8, 1e-2, update_frequency=10) for _ in range(3)]
    for reward in rewards[:2]:
        for seed in range(20):
            reward.observe(conversation(seed, polite=seed % 2 == 0), float(seed % 2 == 0))
    rewards[0].save(tmp_path)
    rewards[2].load(tmp_path)
    scores = {score(reward, conversation(77, polite=True)) for reward in rewards}
    assert len(scores) == 1
    assert scores != {0.5}
    with pytest.raises(ArtifactError, match="sizes"):
        create_neural_reward_function(4, 8).load(tmp_path)
    with pytest.raises(RewardError, match="never measured"):
        NeuralReward(model=tmp_path)


def test_an_observed_reward_has_bounds():
    """1.5 is outside [0, 1]."""
    with pytest.raises(ConfigError, match=r"1\.5\. Scale it"):
        create_neural_reward_function(4, 4).observe(conversation(0, polite=True), 1.5)
