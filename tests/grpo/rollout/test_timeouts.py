from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.errors import BudgetError
from grpo.messages import Message
from grpo.policy.policy import Generation, Policy, Prompt, Sampling
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.tokenizer import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory

SCENARIOS = [Scenario(id=f"s{k}", user_responses=("hello", "bye")) for k in range(3)]
pytestmark = pytest.mark.usefixtures("idle_clock")


class Hung:
    """A policy that generates one turn and then hangs; also its own sampler and session."""

    hash, max_context = "hung", 1000

    def __init__(self, renderer: Renderer, *, failure: Exception | None = None) -> None:
        self.reply_ids = renderer.encode_reply(Message(role="assistant", content="hi"))
        self.failure = failure
        self.closed = 0

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Hung]:
        yield self

    def open(self) -> Hung:
        return self

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        if self.failure is not None:
            raise self.failure
        if len(prompt.messages) > 1:
            await asyncio.Event().wait()
        return Generation(token_ids=list(self.reply_ids), logprobs=[-1.0] * len(self.reply_ids), stop="stop")

    def close(self) -> None:
        self.closed += 1


class Hanging(ConversationEnvironment):
    """An environment that hangs for some scenarios; it counts its resets."""

    def __init__(self, *hangs: str, failure: Exception | None = None, at_first: bool = False) -> None:
        super().__init__()
        self.hangs, self.failure, self.at_first, self.resets = hangs, failure, at_first, 0

    async def reset(self, scenario: Scenario, *, seed: int | None = None) -> EnvironmentState:
        self.resets += 1
        if self.at_first:
            await asyncio.sleep(3600)
        return await super().reset(scenario, seed=seed)

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        if state.scenario.id in self.hangs:
            if self.failure is not None:
                raise self.failure
            await asyncio.sleep(3600)
        return await super().step(state, action)


@pytest.fixture(scope="module")
def renderer(tiny_folder: Path) -> Renderer:
    return Renderer(load_tokenizer(tiny_folder))


def _collect(
    renderer: Renderer, world: ConversationEnvironment, policy: Policy | None = None, **changes: object
) -> list[Trajectory]:
    return collect(
        SCENARIOS,
        policy or ScriptedPolicy(["hi"]),
        world,
        renderer,
        RolloutSettings.model_validate({"error_budget": 1.0, "episode_timeout_s": 4.0, **changes}),
        group_size=1,
        temperature=1.0,
        run_seed=1,
        iteration=0,
    )


def test_a_hanging_policy_fails_at_the_turn_timeout(renderer: Renderer):
    """The first turn was in time; the second is named, and its slot in the batch is released."""
    policy = Hung(renderer)
    trajectories = _collect(renderer, ConversationEnvironment(), policy, turn_timeout_s=0.1)
    assert {t.error for t in trajectories} == {
        "TimeoutError: turn 2 of the policy took longer than 0.1 s (rollout.turn_timeout_s). "
        "Raise it, or lower rollout.concurrency"
    }
    assert [[turn.message.role for turn in t.turns] for t in trajectories] == [["user", "assistant", "user"]] * 3
    assert policy.closed == 3


def test_a_hanging_tool_fails_at_the_step_timeout(renderer: Renderer):
    """Only its episode; the others end as usual."""
    trajectories = _collect(renderer, Hanging("s1"), step_timeout_s=0.1)
    assert [t.stop for t in trajectories] == ["terminated", "failed", "terminated"]
    error = "TimeoutError: the environment's answer to turn 1 took longer than 0.1 s (rollout.step_timeout_s)"
    assert trajectories[1].error == error


def test_a_hanging_reset_fails_at_the_step_timeout(renderer: Renderer):
    """The first message has the same timeout as any other."""
    trajectories = _collect(renderer, Hanging(at_first=True), step_timeout_s=0.1)
    error = "TimeoutError: the environment's first message took longer than 0.1 s (rollout.step_timeout_s)"
    assert {t.error for t in trajectories} == {error}


def test_a_long_episode_fails_at_the_episode_timeout(renderer: Renderer):
    """Whatever took the time, if no turn or step timeout was shorter."""
    trajectories = _collect(renderer, Hanging("s1"), episode_timeout_s=0.2, step_timeout_s=4.0)
    assert [t.error for t in trajectories] == [
        None,
        "TimeoutError: the episode took longer than 0.2 s (rollout.episode_timeout_s)",
        None,
    ]


def test_episodes_after_the_stage_timeout_fail_without_starting(renderer: Renderer):
    """One at a time: the first ends, the second hangs until the stage is over, the third never starts."""
    world = Hanging("s1")
    trajectories = _collect(renderer, world, stage_timeout_s=0.3, concurrency=1)
    error = "TimeoutError: the episode was not finished when the stage had taken 0.3 s (rollout.stage_timeout_s)"
    assert [t.error for t in trajectories] == [None, error, error]
    assert [len(t.turns) for t in trajectories] == [4, 2, 0]
    assert world.resets == 2


def test_the_stage_timeout_is_named_if_both_expire_together(renderer: Renderer):
    """Both after .3 s: more time for the episode alone would not have helped."""
    trajectories = _collect(renderer, Hanging("s1"), episode_timeout_s=0.3, stage_timeout_s=0.3)
    error = "TimeoutError: the episode was not finished when the stage had taken 0.3 s (rollout.stage_timeout_s)"
    assert [t.error for t in trajectories] == [None, error, None]


def test_timeouts_count_against_the_error_budget(renderer: Renderer):
    """1 of 3 is more than 20 %; the message names the place and the timeout."""
    with pytest.raises(BudgetError, match=r"1 of 3 episodes.*scenario s1 sample 0: .*rollout\.stage_timeout_s"):
        _collect(renderer, Hanging("s1"), stage_timeout_s=0.3, error_budget=0.2)


def test_a_timeout_error_of_the_environment_is_kept(renderer: Renderer):
    """The tool's own message is the reason."""
    trajectories = _collect(renderer, Hanging("s1", failure=TimeoutError("the order service is slow")))
    assert trajectories[1].error == "TimeoutError: the order service is slow (test_timeouts.py:71, step)"


def test_a_policy_error_stops_the_run(renderer: Renderer):
    """A failed conversation is data, a failed computation is not, whatever its type."""
    with pytest.raises(ConnectionError, match="server is gone"):
        _collect(renderer, ConversationEnvironment(), Hung(renderer, failure=ConnectionError("server is gone")))
