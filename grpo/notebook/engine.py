"""Trajectory engine: collect, score and train on batches that the caller chooses, and measure the throughput.

Use it instead of the trainer if a loop of your own decides what is collected and when the policy is updated.
"""

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
from grpo.rewards.reward import RewardFunction, Scorer
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory


class ComputationalGRPOEngine:
    """Collects, scores and trains in batches that the caller chooses, with `num_workers` concurrent episodes.

    `buffer` has the last `buffer_size` trajectories.
    """

    def __init__(
        self,
        agent: MultiTurnAgent,
        environment: Environment,
        reward_fn: RewardFunction | Scorer,
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
        self._count, self._seconds, self._iteration = 0, 0.0, 0
        self._set_concurrency(workers)

    async def generate_trajectory_batch(self, batch_size: int) -> list[Trajectory]:
        """Collect and score at least `batch_size` episodes, in whole groups, of scenarios in a seeded order."""
        groups = -(-batch_size // self.trainer.settings.group_size)
        chosen = self.trainer.sample_scenarios(self._iteration, count=groups)
        self._iteration += 1
        return await self._collect(chosen)

    async def compute_policy_update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Update the policy on its scored trajectories. Returns the metrics of the update."""
        return flat_metrics(await self.trainer.update_policy(trajectories))

    async def train_iteration(self, scenarios: Sequence[Scenario]) -> dict[str, float]:
        """Collect groups of these scenarios and update the policy on them."""
        return await self.compute_policy_update(await self._collect(list(scenarios)))

    def get_metrics(self) -> dict[str, float]:
        """Number of trajectories, trajectories a second of rollout, and concurrent episodes."""
        return {
            "trajectories": float(self._count),
            "trajectories_per_second": self._count / self._seconds if self._seconds else 0.0,
            "num_workers": float(self.trainer.settings.concurrency),
        }

    async def scale_computation(self, scale_factor: float) -> int:
        """Multiply the number of concurrent episodes from the next batch on. Returns the new number."""
        if not scale_factor > 0:
            raise ConfigError(f"scale_factor {scale_factor} must be above 0")
        self._set_concurrency(max(1, round(scale_factor * self.trainer.settings.concurrency)))
        return self.trainer.settings.concurrency

    def _set_concurrency(self, workers: int) -> None:
        self.trainer.settings = self.trainer.settings.model_copy(update={"concurrency": workers})

    async def _collect(self, scenarios: list[Scenario]) -> list[Trajectory]:
        began = time.perf_counter()
        groups = await self.trainer.generate_trajectories(scenarios, iteration=self._iteration)
        self._seconds += time.perf_counter() - began
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        self._count += len(trajectories)
        self.buffer.extend(trajectories)
        return trajectories
