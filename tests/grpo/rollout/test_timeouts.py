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
from grpo.policy.transformers.model import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Trajectory

SCENARIOS = [Scenario(id=f"s{k}", user_responses=("hello", "bye")) for k in range(3)]
pytestmark = pytest.mark.usefixtures("idle_clock")


class Silent:
    """A policy that says one turn and never answers again; also its own sampler and session."""

    hash, max_context = "silent", 1000

    def __init__(self, renderer: Renderer, *, failure: Exception | None = None) -> None:
        self.said = renderer.encode_reply(Message(role="assistant", content="hi"))
        self.failure = failure
        self.heard = 0
        self.closed = 0

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Silent]:
        yield self

    def open(self) -> Silent:
        return self

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        self.heard += 1
        if self.failure is not None:
            raise self.failure
        if len(prompt.messages) > 1:
            await asyncio.Event().wait()
        return Generation(token_ids=list(self.said), logprobs=[-1.0] * len(self.said), stop="stop")

    def close(self) -> None:
        self.closed += 1


class Hanging(ConversationEnvironment):
    """A world that does not answer some scenarios; it counts the episodes that were begun."""

    def __init__(self, *hangs: str, failure: Exception | None = None, at_first: bool = False) -> None:
        super().__init__()
        self.hangs, self.failure, self.at_first, self.begun = hangs, failure, at_first, 0

    async def reset(self, scenario: Scenario, *, seed: int | None = None) -> EnvironmentState:
        self.begun += 1
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


def test_a_policy_that_does_not_answer_fails_at_the_deadline_of_a_turn(renderer: Renderer):
    """The first turn was in time; the second is named, and its place in the batch is given back."""
    policy = Silent(renderer)
    played = _collect(renderer, ConversationEnvironment(), policy, turn_timeout_s=0.1)
    assert {t.error for t in played} == {
        "TimeoutError: turn 2 of the policy took longer than 0.1 s (rollout.turn_timeout_s)"
    }
    assert [[turn.message.role for turn in t.turns] for t in played] == [["user", "assistant", "user"]] * 3
    assert policy.closed == 3


def test_a_tool_that_does_not_answer_fails_at_the_deadline_of_a_step(renderer: Renderer):
    """Its episode alone; the others end as they would."""
    played = _collect(renderer, Hanging("s1"), step_timeout_s=0.1)
    assert [t.stop for t in played] == ["terminated", "failed", "terminated"]
    late = "TimeoutError: the environment's answer to turn 1 took longer than 0.1 s (rollout.step_timeout_s)"
    assert played[1].error == late


def test_a_world_that_does_not_begin_fails_at_the_deadline_of_a_step(renderer: Renderer):
    """The first message is an answer like any other."""
    played = _collect(renderer, Hanging(at_first=True), step_timeout_s=0.1)
    late = "TimeoutError: the environment's first message took longer than 0.1 s (rollout.step_timeout_s)"
    assert {t.error for t in played} == {late}


def test_an_episode_that_takes_too_long_fails_at_its_own_deadline(renderer: Renderer):
    """Whoever it was that took the time, where no deadline of a turn or a step was shorter."""
    played = _collect(renderer, Hanging("s1"), episode_timeout_s=0.2, step_timeout_s=4.0)
    assert [t.error for t in played] == [
        None,
        "TimeoutError: the episode took longer than 0.2 s (rollout.episode_timeout_s)",
        None,
    ]


def test_what_the_stage_has_no_time_for_is_failed_and_not_begun(renderer: Renderer):
    """One at a time: the first ends, the second hangs until the stage is over, the third is never begun."""
    world = Hanging("s1")
    played = _collect(renderer, world, stage_timeout_s=0.3, concurrency=1)
    late = "TimeoutError: the episode was not finished when the stage had taken 0.3 s (rollout.stage_timeout_s)"
    assert [t.error for t in played] == [None, late, late]
    assert [len(t.turns) for t in played] == [4, 2, 0]
    assert world.begun == 2


def test_where_episode_and_stage_end_together_it_is_the_stage(renderer: Renderer):
    """Both after .3 s: more time for the episode alone would not have helped."""
    played = _collect(renderer, Hanging("s1"), episode_timeout_s=0.3, stage_timeout_s=0.3)
    late = "TimeoutError: the episode was not finished when the stage had taken 0.3 s (rollout.stage_timeout_s)"
    assert [t.error for t in played] == [None, late, None]


def test_late_episodes_count_against_the_error_budget(renderer: Renderer):
    """1 of 3 is more than 20 %; the message says where and which deadline."""
    with pytest.raises(BudgetError, match=r"1 of 3 episodes.*scenario s1 sample 0: .*rollout\.stage_timeout_s"):
        _collect(renderer, Hanging("s1"), stage_timeout_s=0.3, error_budget=0.2)


def test_a_time_out_of_the_world_s_own_is_not_taken_for_a_deadline(renderer: Renderer):
    """A tool's own words are kept."""
    played = _collect(renderer, Hanging("s1", failure=TimeoutError("the order service is slow")))
    assert played[1].error == "TimeoutError: the order service is slow"


def test_a_policy_that_fails_stops_the_run(renderer: Renderer):
    """A failed conversation is data, a failed computation is not, whatever its type."""
    with pytest.raises(ConnectionError, match="server is gone"):
        _collect(renderer, ConversationEnvironment(), Silent(renderer, failure=ConnectionError("server is gone")))
