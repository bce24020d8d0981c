"""Neural rewards: trained on human preferences before the run, or online on the rewards of other functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.artifacts import local_path
from grpo.errors import ArtifactError, ConfigError, Unscored
from grpo.messages import Message
from grpo.rewards.learned.features import PromptedReply, hash_features, prompted_replies
from grpo.rewards.learned.model_card import ModelCard
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult

if TYPE_CHECKING:
    from grpo.rewards.learned.network import Network


class NeuralReward(RewardFunction):
    """Mean of σ(score) over the agent's replies, by the learned reward in the folder `model`.

    Raises `ArtifactError` for a damaged folder, `RewardError` for a reward that is not better than chance.
    """

    name = "neural"

    @classmethod
    def files(cls, options: Mapping[str, Any]) -> Sequence[str | Path]:
        """The learned reward's folder."""
        return [options["model"]] if "model" in options else []

    def __init__(self, *, model: str | Path, weight: float = 1.0) -> None:
        from grpo.rewards.learned.network import read_network  # torch takes a second to import

        super().__init__(weight=weight)
        self.network, card = read_network(local_path(str(model)))
        self.card = card.require_above_chance(str(model))

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean over replies. Raises `Unscored` for a conversation without a reply."""
        return _mean_score(self.network, turns)


class OnlineReward(RewardFunction):
    """A reward in (0, 1) that learns online to predict another one.

    `observe` keeps the last `capacity` (reply, reward in [0, 1]) pairs. After every `update_frequency` conversations,
    it trains the network on random minibatches of them. Scoring changes nothing.
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
        from grpo.rewards.learned.network import Network  # torch takes a second to import

        super().__init__(weight=weight)
        if update_frequency < 1 or capacity < 1:
            raise ConfigError(f"update_frequency {update_frequency} and capacity {capacity} must be at least 1")
        self.network = Network(buckets=buckets, embedding_dim=embedding_dim, hidden_dim=hidden_dim, seed=seed)
        self.optimizer = self.network.adamw(learning_rate=learning_rate)
        self.update_frequency = update_frequency
        self.updates = updates
        self.batch = batch
        self.seed = seed
        self.observed = 0
        self.losses: list[float] = []
        """Mean squared error of each update. For comparison, a constant ½ gets .25 on rewards of 0 and 1."""
        self._random = np.random.default_rng(seed)
        self._replay: deque[tuple[PromptedReply, float]] = deque(maxlen=capacity)

    def observe(self, turns: Sequence[Message], reward: float) -> None:
        """Store the reward of a conversation, and train when it is time. Raises `ConfigError` outside [0, 1]."""
        if not 0 <= reward <= 1:
            raise ConfigError(f"an observed reward is {reward:g}. Scale it to [0, 1]")
        self._replay.extend((reply, reward) for reply in prompted_replies(turns))
        self.observed += 1
        if self.observed % self.update_frequency == 0 and self._replay:
            self._update()

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Mean of σ(score) over replies. Raises `Unscored` for a conversation without one."""
        return _mean_score(self.network, turns)

    def save(self, folder: Path) -> ModelCard:
        """Write the current network. Its card has no held-out metric."""
        from grpo.rewards.learned.network import write_network

        split = f"the last of {self.observed} conversations"
        card = ModelCard(learned="rewards", split=split, trained=len(self._replay), seed=self.seed)
        return write_network(folder, self.network, card)

    def load(self, folder: Path) -> None:
        """Continue from a saved network. Raises `ArtifactError` if it is damaged or has other sizes."""
        from grpo.rewards.learned.network import read_network

        stored, _ = read_network(folder)
        try:
            self.network.load_state_dict(stored.state_dict())
        except RuntimeError as error:
            raise ArtifactError(f"the network in {folder} has weights of other sizes: {error}") from error

    def _update(self) -> None:
        from grpo.rewards.learned.network import gradient_step, reward_loss

        replay = list(self._replay)
        drawn = self._random.integers(len(replay), size=(self.updates, min(self.batch, len(replay))))
        for rows in drawn:
            features = hash_features([replay[row][0] for row in rows], buckets=self.network.buckets)
            rewards = [replay[row][1] for row in rows]
            loss = gradient_step(self.optimizer, reward_loss(self.network(features), rewards))
        self.losses.append(loss)


def create_neural_reward_function(
    embedding_dim: int = 128,
    hidden_dim: int = 256,
    learning_rate: float = 1e-4,
    weight: float = 1.0,
    update_frequency: int = 100,
) -> OnlineReward:
    """A reward that learns from observed rewards."""
    return OnlineReward(
        embedding_dim=embedding_dim,
        hidden_dim=hidden_dim,
        learning_rate=learning_rate,
        weight=weight,
        update_frequency=update_frequency,
    )


def _mean_score(network: Network, turns: Sequence[Message]) -> RewardResult:
    replies = prompted_replies(turns)
    if not replies:
        raise Unscored("the conversation has no reply of the agent")
    probabilities = network.probabilities(hash_features(replies, buckets=network.buckets))
    return RewardResult(score=float(probabilities.mean()))
