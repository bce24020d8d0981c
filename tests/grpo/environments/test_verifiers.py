from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError, DataError
from grpo.learner.checkpoints import read_state, save_base
from grpo.learner.update import update
from grpo.messages import Message
from grpo.policy.transformers.model import load, model_cache
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.tables import write_trajectories

vf = pytest.importorskip("verifiers.v1", reason="the extra verifiers is not installed")
from grpo.environments.verifiers import VerifiersEnvironment  # noqa: E402

REPLY = Message(role="assistant", content="abba")


class Letters(vf.Task):  # type: ignore[misc]
    """A small environment as its author would write it for that package."""

    @vf.reward(weight=2.0)
    async def vowels(self, trace: Any) -> float:
        """Share of the reply that is a vowel of the lower or upper case."""
        reply = trace.last_reply
        return sum(letter in "aeiouAEIOU" for letter in reply) / max(len(reply), 1)

    @vf.metric
    async def length(self, trace: Any) -> float:
        """Characters of the reply."""
        return len(trace.last_reply)


class Words(vf.Taskset):  # type: ignore[misc]
    """Four prompts under one system prompt."""

    def load(self) -> Iterator[Letters]:
        for word in ("hello", "my order", "how are you", "broken"):
            yield Letters(vf.TaskData(prompt=word, system_prompt="Say vowels."))


def _words() -> Any:
    return Words(vf.TasksetConfig())


def test_a_task_is_scored_by_its_own_rewards():
    """ "abba": half vowels, weighted by 2, and four characters; one turn and the episode is over."""

    async def run() -> None:
        world = VerifiersEnvironment(_words())
        state = await world.reset(world.scenarios[1])
        assert (state.context, state.history[0].content) == ("Say vowels.", "my order")
        result = await world.step(state, REPLY)
        assert (result.reward, result.terminated) == (1.0, True)
        assert result.info == {"rewards": {"vowels": 1.0}, "metrics": {"length": 4}}

    asyncio.run(run())


def test_an_exception_of_a_reward_propagates():
    """The error of the package reaches the rollout."""

    class Broken(Letters):
        @vf.reward
        async def nothing(self, trace: Any) -> float:
            """Divide by zero."""
            return 1 / 0

    class Breaking(Words):
        def load(self) -> Iterator[Letters]:
            yield Broken(vf.TaskData(prompt="hello"))

    async def run() -> None:
        world = VerifiersEnvironment(Breaking(vf.TasksetConfig()))
        await world.step(await world.reset(), REPLY)

    with pytest.raises(vf.TaskError):
        asyncio.run(run())


def test_a_task_that_needs_more_than_a_reply_is_refused():
    """Requirements of rewards and hooks are not ignored, and a prompt ends with the user's message."""

    class Files(Letters):
        @vf.reward
        async def files(self, runtime: Any) -> float:
            """Read a file."""
            return 1.0

    class Filing(Words):
        def load(self) -> Iterator[Letters]:
            yield Files(vf.TaskData(prompt="hello"))

    class Prepared(Letters):
        async def setup(self, trace: Any, runtime: Any) -> None:
            """Write a file."""

    class Preparing(Words):
        def load(self) -> Iterator[Letters]:
            yield Prepared(vf.TaskData(prompt="hello"))

    class Silent(Words):
        def load(self) -> Iterator[Letters]:
            yield Letters(vf.TaskData())

    class Endless(Words):
        INFINITE = True

    reasons = {
        Filing: "needs a runtime for a reward",
        Preparing: "needs a runtime for setup",
        Silent: "must end with the user's message",
    }
    for taskset, reason in reasons.items():
        with pytest.raises(DataError, match=reason):
            VerifiersEnvironment(taskset(vf.TasksetConfig()))
    with pytest.raises(ConfigError, match="Endless is endless"):
        VerifiersEnvironment(Endless(vf.TasksetConfig()))


def test_a_verifiers_environment_is_trained_unchanged(tmp_path: Path, tiny_folder: Path):
    """Ten updates on the package's rewards alone: the tiny model generates more vowels than at first."""
    world = VerifiersEnvironment(_words())
    plan = TrainingSettings(algorithm="grpo", learning_rate=3e-2)
    base = tmp_path / "0"
    base.mkdir()
    save_base(load(tiny_folder), base)
    checkpoint, means = base, []
    for iteration in range(11):
        policy = model_cache.get(read_state(checkpoint).policy_hash, checkpoint)
        played = collect(
            world.scenarios,
            policy,
            world,
            Renderer(policy.tokenizer),
            RolloutSettings.model_validate({"max_new_tokens": 6, "on_truncation": "continue"}),
            group_size=8,
            temperature=1.0,
            run_seed=0,
            iteration=iteration,
        )
        means.append(float(np.mean([trajectory.turn_rewards[0] for trajectory in played])))
        if means[-1] > means[0] + 0.5:
            break
        scored, target = tmp_path / f"{iteration}.parquet", tmp_path / str(iteration + 1)
        write_trajectories(scored, [replace(trajectory, terminal_reward=0.0) for trajectory in played], provenance={})
        update([scored], checkpoint, base, target, plan, seed=0, iteration=iteration)
        checkpoint = target
    assert means[-1] > means[0] + 0.3
