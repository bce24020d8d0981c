"""The trajectory engine of the guide: plays many episodes at once, learns from them, and says how fast it is."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.environments.environment import Environment
from grpo.errors import ConfigError
from grpo.notebook.callbacks import flat_metrics
from grpo.notebook.config import TrainingConfig
from grpo.notebook.trainer import MultiTurnGRPOTrainer
from grpo.rewards.reward import RewardFunction
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Trajectory


class ComputationalGRPOEngine:
    """Plays, judges and learns in batches that the caller chooses; `num_workers` episodes are in flight at once.

    The last `buffer_size` trajectories stay at hand.
    """

    def __init__(
        self,
        agent: MultiTurnAgent,
        environment: Environment,
        reward_fn: RewardFunction,
        *,
        num_workers: int | None = None,
        buffer_size: int = 100,
        config: TrainingConfig | None = None,
    ) -> None:
        workers = num_workers if num_workers is not None else os.cpu_count() or 1
        if workers < 1 or buffer_size < 1:
            raise ConfigError(f"num_workers {workers} and buffer_size {buffer_size} must be at least 1")
        self.trainer = MultiTurnGRPOTrainer(agent, environment, reward_fn, config)
        self.buffer: deque[Trajectory] = deque(maxlen=buffer_size)
        self._played, self._seconds, self._iteration = 0, 0.0, 0
        self._employ(workers)

    async def generate_trajectory_batch(self, batch_size: int) -> list[Trajectory]:
        """Play at least `batch_size` judged episodes, in whole groups of siblings, of scenarios in a seeded order."""
        siblings = self.trainer.rollout.group_size
        groups = -(-batch_size // siblings)
        chosen = self.trainer.sample_scenarios(self._iteration, count=groups)
        self._iteration += 1
        return await self._play(chosen)

    async def compute_policy_update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Learn from judged trajectories of the present policy; returns the update's numbers."""
        return flat_metrics(await self.trainer.update_policy(trajectories))

    async def train_iteration(self, scenarios: Sequence[Scenario]) -> dict[str, float]:
        """Play groups of these scenarios and learn from them."""
        played = await self._play(list(scenarios))
        return await self.compute_policy_update(played)

    def get_metrics(self) -> dict[str, float]:
        """Trajectories so far, a second of playing, and in flight at once."""
        return {
            "trajectories": float(self._played),
            "trajectories_per_second": self._played / self._seconds if self._seconds else 0.0,
            "num_workers": float(self.trainer.rollout.concurrency),
        }

    async def scale_computation(self, scale_factor: float) -> int:
        """Have so many times as many episodes in flight from the next batch on; returns how many."""
        if not scale_factor > 0:
            raise ConfigError(f"scale_factor {scale_factor} must be above 0")
        self._employ(max(1, round(scale_factor * self.trainer.rollout.concurrency)))
        return self.trainer.rollout.concurrency

    def _employ(self, workers: int) -> None:
        self.trainer.rollout = self.trainer.rollout.model_copy(update={"concurrency": workers})

    async def _play(self, scenarios: list[Scenario]) -> list[Trajectory]:
        began = time.perf_counter()
        groups = await self.trainer.generate_trajectories(scenarios, iteration=self._iteration)
        self._seconds += time.perf_counter() - began
        played = [trajectory for group in groups for trajectory in group.trajectories]
        self._played += len(played)
        self.buffer.extend(played)
        return played
