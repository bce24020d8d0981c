from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.notebook.config import TrainingConfig
from grpo.notebook.engine import ComputationalGRPOEngine
from tests.grpo.notebook.test_trainer import QUICK, SCENARIOS, LetterReward, make_hash


class CountingEnvironment(ConversationEnvironment):
    """Counts how many episodes wait for it at the same time."""

    def __init__(self) -> None:
        super().__init__(SCENARIOS, max_turns=2)
        self.inside = self.most = 0

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.02)
        self.inside -= 1
        return await super().step(state, action)


def make_engine(tiny: Path, environment: ConversationEnvironment, **options: int) -> ComputationalGRPOEngine:
    agent = MultiTurnAgent(AgentConfig(model_name=str(tiny)))
    config = TrainingConfig(**QUICK)  # type: ignore[arg-type]
    return ComputationalGRPOEngine(agent, environment, LetterReward(), config=config, **options)


def test_a_batch_has_whole_groups_and_is_measured(tiny_folder: Path):
    """Ten episodes asked for, groups of eight: sixteen are played, a second of them is counted."""
    engine = make_engine(tiny_folder, ConversationEnvironment(SCENARIOS, max_turns=2), buffer_size=5)
    played = asyncio.run(engine.generate_trajectory_batch(10))
    metrics = engine.get_metrics()
    assert len(played) == 16
    assert metrics["trajectories"] == 16
    assert metrics["trajectories_per_second"] > 0
    assert list(engine.buffer) == played[-5:]


def test_scaling_changes_the_number_of_concurrent_episodes(tiny_folder: Path):
    """Two at once, then four."""
    world = CountingEnvironment()
    engine = make_engine(tiny_folder, world, num_workers=2)

    async def both() -> tuple[int, int]:
        await engine.generate_trajectory_batch(16)
        before, world.most = world.most, 0
        assert await engine.scale_computation(2.0) == 4
        await engine.generate_trajectory_batch(16)
        return before, world.most

    assert asyncio.run(both()) == (2, 4)


def test_an_iteration_changes_the_policy(tiny_folder: Path):
    """Rollout, scores and update; the metrics of the update are returned."""
    engine = make_engine(tiny_folder, ConversationEnvironment(SCENARIOS, max_turns=2))
    flat_metrics = asyncio.run(engine.train_iteration(SCENARIOS))
    assert flat_metrics["update/gradient_norm"] > 0
    assert engine.trainer.agent.policy.hash != make_hash(tiny_folder)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"buffer_size": 0}])
def test_zero_workers_or_a_zero_buffer_are_refused(tiny_folder: Path, options: dict[str, int]):
    """Both must be at least 1."""
    with pytest.raises(ConfigError, match="at least 1"):
        make_engine(tiny_folder, ConversationEnvironment(SCENARIOS), **options)
