from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from grpo.errors import RewardError
from grpo.learner.reward_trainer import NeuralRewardTrainer
from grpo.learner.trl.reward_model import RewardModelReport
from grpo.messages import Message
from grpo.rewards.learned.model_card import ModelCard
from grpo.rewards.reward import RewardContext, RewardFunction
from grpo.scenarios.reward_data import PreferencePair

CONTEXT = RewardContext(scenario_id="s", category="c", stop="terminated")
PROMPT = (Message(role="user", content="my order is broken"),)


def agent(word: str, seed: int) -> Message:
    random = np.random.default_rng(seed)
    words = [*random.choice(["the", "order", "look", "up", "hello", "number", "there"], 4), word]
    return Message(role="assistant", content=" ".join(random.permutation(words)))


def pairs(count: int, *, better: str = "hello", worse: str = "broken", by_lot: bool = False) -> list[PreferencePair]:
    found = []
    for index in range(count):
        words = (worse, better) if by_lot and np.random.default_rng(index).random() < 0.5 else (better, worse)
        found.append(
            PreferencePair(
                id=f"p{index}", group=f"g{index}", prompt=PROMPT, category="c", source="made up", licence="none",
                chosen=agent(words[0], 2 * index), rejected=agent(words[1], 2 * index + 1),
            )
        )  # fmt: skip
    return found


def score(reward: RewardFunction, reply: Message) -> float:
    return asyncio.run(reward.compute_reward([*PROMPT, reply], CONTEXT)).score


def test_pairs_train_a_small_network_from_scratch(tmp_path: Path):
    """It prefers what people prefer, and its held-out accuracy has an interval above guessing."""
    trainer = NeuralRewardTrainer("ngrams", pairs(200, better="gladly"), folder=tmp_path)
    reward = asyncio.run(trainer.train())
    assert isinstance(trainer.measured, ModelCard)
    assert trainer.measured.heldout is not None
    assert trainer.measured.heldout.low > 0.5
    assert score(reward, agent("gladly", 9001)) > score(reward, agent("broken", 9002))


def test_pairs_train_a_transformer(tiny_folder: Path, tmp_path: Path):
    """The loss falls below guessing's ln 2, and the reward reads whole conversations, the same each time."""
    trainer = NeuralRewardTrainer(tiny_folder, pairs(150), folder=tmp_path, learning_rate=3e-3, epochs=4)
    reward = asyncio.run(trainer.train())
    assert isinstance(trainer.measured, RewardModelReport)
    assert trainer.measured.low > 0.5
    assert trainer.measured.loss < np.log(2)
    replies = agent("hello", 9001), agent("broken", 9002)
    scores = [score(reward, reply) for reply in (*replies, *replies)]
    assert scores[0] > scores[1]
    assert scores[:2] == scores[2:]


@pytest.mark.parametrize("kind", ["ngrams", "transformer"])
def test_a_reward_that_may_be_guessing_is_not_returned(kind: str, tiny_folder: Path, tmp_path: Path):
    """Pairs in random order."""
    trainer = NeuralRewardTrainer(kind if kind == "ngrams" else tiny_folder, pairs(60, by_lot=True), folder=tmp_path)
    with pytest.raises(RewardError, match="may be guessing"):
        asyncio.run(trainer.train())
