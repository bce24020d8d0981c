"""Rewards that a small network learned: from people's preferences before the run, or from other rewards during it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo.errors import ConfigError, Unscored
from grpo.messages import Message
from grpo.rewards.learned.features import PromptedReply, bags, prompted_replies
from grpo.rewards.learned.losses import rewards_loss, sigmoid
from grpo.rewards.learned.model_card import ModelCard, read_network, write_network
from grpo.rewards.learned.network import Adam, Network
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult


class NeuralReward(RewardFunction):
    """What a learned reward in the folder `model` thinks of the agent's replies: the mean of σ(score).

    Raises `ArtifactError` for a damaged folder, `RewardError` for a reward that may be guessing.
    """

    name = "neural"

    @classmethod
    def files(cls, options: Mapping[str, Any]) -> Sequence[str | Path]:
        """The learned reward's folder."""
        return [options["model"]] if "model" in options else []

    def __init__(self, *, model: str | Path, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.network, card = read_network(Path(model))
        self.card = card.require_above_chance(str(model))

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class; a conversation without a reply cannot be judged."""
        replies = prompted_replies(turns)
        if not replies:
            raise Unscored("the agent said nothing")
        return RewardResult(score=float(judge(self.network, replies).mean()))


class OnlineReward(RewardFunction):
    """A reward that learns to foretell another one while that is being given, and speaks in (0, 1).

    `observe` keeps the last `capacity` (conversation, reward in [0, 1]) pairs, and after every `update_frequency` of
    them the network is taught on random ones. Scoring changes nothing.
    """

    name = "neural"

    def __init__(
        self,
        *,
        embedding_dim: int = 128,
        hidden_dim: int = 256,
        learning_rate: float = 1e-4,
        weight: float = 1.0,
        update_frequency: int = 100,
        buckets: int = 1 << 12,
        capacity: int = 10_000,
        updates: int = 20,
        batch: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(weight=weight)
        if update_frequency < 1 or capacity < 1:
            raise ConfigError(f"update_frequency {update_frequency} and capacity {capacity} must be at least 1")
        self.network = Network.new(buckets=buckets, embedding_dim=embedding_dim, hidden_dim=hidden_dim, seed=seed)
        self.optimizer = Adam(self.network, learning_rate=learning_rate)
        self.update_frequency = update_frequency
        self.updates = updates
        self.batch = batch
        self.seed = seed
        self.observed = 0
        self.losses: list[float] = []
        """Mean squared error of each update; .25 is what guessing ½ gets on rewards of 0 and 1."""
        self._random = np.random.default_rng(seed)
        self._replay: deque[tuple[PromptedReply, float]] = deque(maxlen=capacity)

    def observe(self, turns: Sequence[Message], reward: float) -> None:
        """Remember what a conversation was worth; now and then learn. Raises `ConfigError` outside [0, 1]."""
        if not 0 <= reward <= 1:
            raise ConfigError(f"an observed reward is {reward:g}; scale it to [0, 1]")
        for exchange in prompted_replies(turns):
            self._replay.append((exchange, reward))
        self.observed += 1
        if self.observed % self.update_frequency == 0 and self._replay:
            self._update()

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean of σ(score) over the agent's replies; a conversation without one cannot be judged."""
        replies = prompted_replies(turns)
        if not replies:
            raise Unscored("the agent said nothing")
        return RewardResult(score=float(judge(self.network, replies).mean()))

    def save(self, folder: Path) -> ModelCard:
        """Write what was learned so far; the card says that it was never measured."""
        split = f"the last of {self.observed} conversations"
        card = ModelCard(learned="rewards", split=split, trained=len(self._replay), seed=self.seed)
        return write_network(folder, self.network, card)

    def load(self, folder: Path) -> None:
        """Go on with what was saved. Raises `ArtifactError` where that is damaged or of another size."""
        network, _ = read_network(folder)
        network.require_shape_of(self.network)
        for name, weight in self.network.weights.items():
            weight[...] = network.weights[name]

    def _update(self) -> None:
        replay = list(self._replay)
        drawn = self._random.integers(len(replay), size=(self.updates, min(self.batch, len(replay))))
        for rows in drawn:
            seen = bags([replay[row][0] for row in rows], buckets=len(self.network.wide))
            rewards = np.array([replay[row][1] for row in rows], dtype=np.float32)
            value, gradients = self.network.gradients(seen, rewards_loss(rewards))
            self.optimizer.step(gradients)
        self.losses.append(value)


def create_neural_reward_function(
    embedding_dim: int = 128,
    hidden_dim: int = 256,
    learning_rate: float = 1e-4,
    weight: float = 1.0,
    update_frequency: int = 100,
) -> OnlineReward:
    """A reward that learns from the rewards that it is shown."""
    return OnlineReward(
        embedding_dim=embedding_dim,
        hidden_dim=hidden_dim,
        learning_rate=learning_rate,
        weight=weight,
        update_frequency=update_frequency,
    )


def judge(network: Network, replies: Sequence[PromptedReply]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """σ(score) of each reply [replies]."""
    return sigmoid(network.scores(bags(replies, buckets=len(network.wide))))
