from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import numpy as np
import pytest

from grpo.agents.tool_agent import ToolAgent
from grpo.config.agent import AgentConfig
from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.errors import BudgetError, ConfigError, DataError
from grpo.messages import Message
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.policy.transformers.sampler import SlotSampler
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect, sample_seed, schedule
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Trajectory

SCENARIOS = [Scenario(id=f"s{k}", user_responses=("hello", f"order {k}", "bye")) for k in range(4)]


class HangingTool(ConversationEnvironment):
    """A world whose answer never comes for one scenario."""

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        if state.scenario.id == "s1":
            await asyncio.sleep(3600)
        return await super().step(state, action)


class BrokenTool(ConversationEnvironment):
    """A world that breaks for one scenario."""

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        if state.scenario.id == "s1":
            raise KeyError("order table")
        return await super().step(state, action)


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _collect(
    policy: TransformersPolicy, world: ConversationEnvironment | None = None, **changes: object
) -> list[Trajectory]:
    scenarios = changes.pop("scenarios", SCENARIOS)
    plan = {"max_new_tokens": 5, "max_context": 200, "concurrency": 8, "error_budget": 0.0, **changes}
    return collect(
        scenarios,  # type: ignore[arg-type]
        policy,
        world or ConversationEnvironment(max_turns=3),
        Renderer(policy.tokenizer),
        RolloutSettings.model_validate(plan),
        group_size=2,
        temperature=1.0,
        run_seed=1,
        iteration=0,
    )


def test_a_trajectory_is_token_exact(policy: TransformersPolicy):
    """Spans tile the tokens, the mask is on exactly where the agent spoke, log-probabilities are 0 elsewhere."""
    for trajectory in _collect(policy, max_new_tokens=40):
        assert trajectory.turns[-1].stop == len(trajectory.token_ids)
        for turn, following in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            assert turn.stop == following.start
        for turn in trajectory.turns:
            said = trajectory.loss_mask[turn.start : turn.stop]
            assert said.all() if turn.message.role == "assistant" else not said.any()
        assert (trajectory.sampler_logprobs[~trajectory.loss_mask] == 0).all()
        assert (trajectory.sampler_logprobs[trajectory.loss_mask] < 0).all()


def test_the_same_sample_is_played_whatever_it_is_played_with(policy: TransformersPolicy):
    """All scenarios at once, two shards, another concurrency: the same tokens."""
    whole = _collect(policy)
    shards = _collect(policy, scenarios=SCENARIOS[::2], concurrency=1) + _collect(policy, scenarios=SCENARIOS[1::2])
    by_key = {(t.scenario_id, t.sample): t for t in shards}
    for trajectory in whole:
        assert np.array_equal(trajectory.token_ids, by_key[trajectory.scenario_id, trajectory.sample].token_ids)


@pytest.mark.usefixtures("idle_clock", "stopping")
def test_a_hanging_tool_fails_its_episode_and_no_other(policy: TransformersPolicy):
    """The deadline makes it data; the siblings of other scenarios are untouched."""
    played = _collect(policy, HangingTool(max_turns=3), episode_timeout_s=3.0, error_budget=0.5)
    assert {t.scenario_id: (t.stop, t.error) for t in played} == {
        **dict.fromkeys(("s0", "s2", "s3"), ("terminated", None)),
        "s1": ("failed", "TimeoutError: the episode took longer than 3.0 s (rollout.episode_timeout_s)"),
    }
    assert all(t.terminal_reward is None for t in played)


def test_a_world_that_breaks_fails_its_episode_with_the_reason(policy: TransformersPolicy, stopping: None):
    """KeyError: the error is kept, the outcome is None."""
    played = _collect(policy, BrokenTool(max_turns=3), error_budget=0.5)
    (first, *_) = [t for t in played if t.scenario_id == "s1"]
    assert (first.stop, first.outcome) == ("failed", None)
    assert first.error == "KeyError: 'order table'"


def test_too_many_failures_stop_the_run(policy: TransformersPolicy, stopping: None):
    """2 of 8 episodes are more than 10 %."""
    with pytest.raises(BudgetError, match=r"2 of 8 episodes failed.*scenario s1 sample 0.*order table"):
        _collect(policy, BrokenTool(max_turns=3), error_budget=0.1)


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch, policy: TransformersPolicy) -> None:
    """A policy that ends its turn at once, so that every episode reaches the world."""
    stop = int(policy.tokenizer.eos_token_id)
    original = policy.model.forward

    def forward(*args: object, **kwargs: object) -> object:
        output = original(*args, **kwargs)
        output.logits[..., stop] += 50
        return output

    monkeypatch.setattr(policy.model, "forward", forward)


def _clerk() -> ToolAgent:
    """An agent with two functions of its own."""
    agent = ToolAgent(AgentConfig(model_name="stub://"))
    for name in ("double", "halve"):
        agent.register_tool(name, lambda value: value)
    return agent


def test_tools_that_the_policy_is_not_shown_are_refused(policy: TransformersPolicy):
    """Both names, and what to do; shown, the episodes are played."""
    plan = RolloutSettings(max_new_tokens=5, max_context=4000)
    agent = _clerk()

    def play(renderer: Renderer) -> list[Trajectory]:
        return collect(
            SCENARIOS[:1],
            policy,
            ConversationEnvironment(),
            renderer,
            plan,
            group_size=1,
            temperature=1.0,
            run_seed=1,
            iteration=0,
            agent=agent,
        )

    with pytest.raises(ConfigError) as refusal:
        play(Renderer(policy.tokenizer))
    assert str(refusal.value) == (
        "the renderer does not show the agent's tools double, halve; make it with "
        "tools=(*environment.tools, *agent.tools)"
    )
    assert len(play(Renderer(policy.tokenizer, tools=agent.tools))) == 1


def test_an_iteration_plays_each_scenario_once_and_an_epoch_plays_all():
    """5 scenarios, 2 an iteration: after 5 iterations each was played twice."""
    ids = list("abcde")
    played = [scenario for k in range(5) for scenario in schedule(ids, iteration=k, count=2, seed=3)]
    assert sorted(played) == sorted(ids * 2)
    assert schedule(ids, iteration=3, count=2, seed=3) == schedule(ids, iteration=3, count=2, seed=3)
    assert schedule(ids, iteration=0, count=5, seed=3) != schedule(ids, iteration=0, count=5, seed=4)


def test_nothing_to_play_is_an_error():
    """An empty training side names the setting."""
    with pytest.raises(DataError, match=r"^no scenario to play: the training side is empty; lower scenarios\."):
        schedule([], iteration=0, count=2, seed=0)


def test_every_sample_has_a_seed_of_its_own():
    """Run, iteration, scenario and sample all count."""
    seeds = {sample_seed(r, i, s, k) for r in (0, 1) for i in (0, "heldout") for s in ("a", "b") for k in (0, 1)}
    assert len(seeds) == 16


def test_a_turn_that_was_cut_ends_the_episode_or_stands_as_it_is(policy: TransformersPolicy):
    """Five tokens are too few for this model to end a turn: one turn, or all three with the stop token read to it."""
    for trajectory in _collect(policy):
        assert [turn.message.role for turn in trajectory.turns] == ["user", "assistant"]
        assert trajectory.stop == "truncated"
    stop_id = Renderer(policy.tokenizer).stop_id
    for trajectory in _collect(policy, on_truncation="continue"):
        assert [turn.message.role for turn in trajectory.turns] == ["user", "assistant"] * 3
        assert trajectory.stop == "terminated"
        first, second = trajectory.turns[1:3]
        assert trajectory.loss_mask[first.start : first.stop].all()
        if stop_id not in trajectory.token_ids[first.start : first.stop]:
            assert trajectory.token_ids[second.start] == stop_id
            assert not trajectory.loss_mask[second.start]


def test_a_rollout_gives_its_cache_back_when_it_ends(policy: TransformersPolicy):
    """No cycle keeps the sampler, whose cache is large, until a collection comes by."""
    gc.collect()
    gc.disable()
    try:
        _collect(policy)
        assert not [thing for thing in gc.get_objects() if type(thing) is SlotSampler]
    finally:
        gc.enable()
