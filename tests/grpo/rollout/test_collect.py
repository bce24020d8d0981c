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
from grpo.policy.transformers.sampling.slot_sampler import SlotSampler
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect, sample_seed, schedule
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory

SCENARIOS = [Scenario(id=f"s{k}", user_responses=("hello", f"order {k}", "bye")) for k in range(4)]


class HangingTool(ConversationEnvironment):
    """An environment whose step never ends for one scenario."""

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        if state.scenario.id == "s1":
            await asyncio.sleep(3600)
        return await super().step(state, action)


class BrokenTool(ConversationEnvironment):
    """An environment that raises for one scenario."""

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
    """Spans tile the tokens, the mask covers exactly the assistant turns, log-probabilities are 0 elsewhere."""
    for trajectory in _collect(policy, max_new_tokens=40):
        assert trajectory.turns[-1].stop == len(trajectory.token_ids)
        for turn, following in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            assert turn.stop == following.start
        for turn in trajectory.turns:
            mask = trajectory.loss_mask[turn.start : turn.stop]
            assert mask.all() if turn.message.role == "assistant" else not mask.any()
        assert (trajectory.sampler_logprobs[~trajectory.loss_mask] == 0).all()
        assert (trajectory.sampler_logprobs[trajectory.loss_mask] < 0).all()


def test_a_sample_does_not_depend_on_its_batch_or_shard(policy: TransformersPolicy):
    """All scenarios at once, two shards, another concurrency: the same tokens."""
    expected = _collect(policy)
    shards = _collect(policy, scenarios=SCENARIOS[::2], concurrency=1) + _collect(policy, scenarios=SCENARIOS[1::2])
    by_key = {(t.scenario_id, t.sample): t for t in shards}
    for trajectory in expected:
        assert np.array_equal(trajectory.token_ids, by_key[trajectory.scenario_id, trajectory.sample].token_ids)


@pytest.mark.usefixtures("idle_clock", "stopping")
def test_a_hanging_tool_fails_its_episode_and_no_other(policy: TransformersPolicy):
    """The timeout is recorded; the episodes of other scenarios end as usual."""
    trajectories = _collect(policy, HangingTool(max_turns=3), episode_timeout_s=3.0, error_budget=0.5)
    assert {t.scenario_id: (t.stop, t.error) for t in trajectories} == {
        **dict.fromkeys(("s0", "s2", "s3"), ("terminated", None)),
        "s1": ("failed", "TimeoutError: the episode took longer than 3.0 s (rollout.episode_timeout_s)"),
    }
    assert all(t.terminal_reward is None for t in trajectories)


def test_an_environment_error_fails_its_episode_with_the_reason(policy: TransformersPolicy, stopping: None):
    """KeyError: the error is kept, the outcome is None."""
    trajectories = _collect(policy, BrokenTool(max_turns=3), error_budget=0.5)
    (first, *_) = [t for t in trajectories if t.scenario_id == "s1"]
    assert (first.stop, first.outcome) == ("failed", None)
    assert first.error == "KeyError: 'order table' (test_collect.py:41, step)"


def test_too_many_failures_stop_the_run(policy: TransformersPolicy, stopping: None):
    """1 of 8 episodes is more than 10 %."""
    with pytest.raises(
        BudgetError, match=r"1 of 8 episodes have failed.*The others were ended.*scenario s1 sample 0.*order table"
    ):
        _collect(policy, BrokenTool(max_turns=3), error_budget=0.1)


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch, policy: TransformersPolicy) -> None:
    """A policy that ends its turn at once, so that every episode reaches the environment."""
    stop = int(policy.tokenizer.eos_token_id)
    original = policy.model.forward

    def forward(*args: object, **kwargs: object) -> object:
        output = original(*args, **kwargs)
        output.logits[..., stop] += 50
        return output

    monkeypatch.setattr(policy.model, "forward", forward)


def _agent_with_tools() -> ToolAgent:
    """An agent with two tools."""
    agent = ToolAgent(AgentConfig(model_name="stub://"))
    for name in ("double", "halve"):
        agent.register_tool(name, lambda value: value)
    return agent


def test_tools_that_the_renderer_lacks_are_refused(policy: TransformersPolicy):
    """Both names, and the remedy; with them the episodes run."""
    plan = RolloutSettings(max_new_tokens=5, max_context=4000)
    agent = _agent_with_tools()

    def roll_out(renderer: Renderer) -> list[Trajectory]:
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
        roll_out(Renderer(policy.tokenizer))
    assert str(refusal.value) == (
        "the renderer does not show the agent's tools double, halve. Make it with "
        "tools=(*environment.tools, *agent.tools)"
    )
    assert len(roll_out(Renderer(policy.tokenizer, tools=agent.tools))) == 1


def test_an_iteration_uses_each_scenario_once_and_an_epoch_all():
    """5 scenarios, 2 an iteration: after 5 iterations each was used twice."""
    ids = list("abcde")
    scheduled = [scenario for k in range(5) for scenario in schedule(ids, iteration=k, count=2, seed=3)]
    assert sorted(scheduled) == sorted(ids * 2)
    assert schedule(ids, iteration=3, count=2, seed=3) == schedule(ids, iteration=3, count=2, seed=3)
    assert schedule(ids, iteration=0, count=5, seed=3) != schedule(ids, iteration=0, count=5, seed=4)


def test_an_empty_training_split_is_refused():
    """The message names the setting."""
    with pytest.raises(
        DataError, match=r"^no scenario to roll out, because the training split is empty\. Lower scenarios\."
    ):
        schedule([], iteration=0, count=2, seed=0)


def test_every_sample_has_a_seed_of_its_own():
    """Run, iteration, scenario and sample determine it."""
    seeds = {sample_seed(r, i, s, k) for r in (0, 1) for i in (0, "heldout") for s in ("a", "b") for k in (0, 1)}
    assert len(seeds) == 16


def test_a_truncated_turn_ends_the_episode_or_is_kept(policy: TransformersPolicy):
    """Five tokens are too few to end a turn: one turn, or all three with the stop token in the prompt."""
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


def test_a_rollout_frees_its_kv_cache_when_it_ends(policy: TransformersPolicy):
    """The sampler and its large cache are in no reference cycle that waits for a garbage collection."""
    gc.collect()
    gc.disable()
    try:
        _collect(policy)
        assert not [obj for obj in gc.get_objects() if type(obj) is SlotSampler]
    finally:
        gc.enable()


ABCDE = list("abcde")


def test_later_rounds_use_scenarios_that_the_iteration_has_not_used():
    """The worked example: c a, then e b, then the rest, then nothing."""
    rounds = [schedule(ABCDE, iteration=0, count=2, seed=252, round=k) for k in range(4)]
    assert rounds == [["c", "a"], ["e", "b"], ["d"], []]


@pytest.mark.parametrize("iteration", range(6))
@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_the_rounds_of_an_iteration_use_every_scenario_once(iteration: int, count: int):
    """No repeats and none left out, also if round 0 spans two shuffles."""
    scheduled = [name for k in range(6) for name in schedule(ABCDE, iteration=iteration, count=count, seed=1, round=k)]
    assert sorted(scheduled) == ABCDE


def test_later_rounds_have_an_order_for_each_seed_and_iteration():
    """Deterministic; another seed, and an iteration with the same round 0, have other orders."""
    names = [f"s{k}" for k in range(50)]

    def further(seed: int, iteration: int) -> list[str]:
        return schedule(names, iteration=iteration, count=10, seed=seed, round=1)

    assert further(3, 0) == further(3, 0)
    assert len({tuple(further(seed, iteration)) for seed in (3, 4) for iteration in (0, 5)}) == 4


SLOW, QUICK, TURNS = 64, 4, 3


class Counter(ConversationEnvironment):
    """Steps of slow scenarios end only when all of them wait and all quick episodes have ended."""

    def __init__(self) -> None:
        super().__init__(max_turns=TURNS)
        self.open = asyncio.Event()
        self.waiting = self.most = self.quick_turns = self.turns_meanwhile = 0

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        quick = state.scenario.topic == "quick"
        if quick:
            self.quick_turns += 1
            self.turns_meanwhile += self.most == SLOW
        elif not self.open.is_set():
            self.waiting += 1
            self.most = max(self.most, self.waiting)
        if self.most == SLOW and self.quick_turns == QUICK * TURNS:
            self.open.set()
        if not quick:
            await self.open.wait()
        return await super().step(state, action)


def test_all_tool_calls_wait_concurrently_while_other_episodes_generate(tiny_folder: Path):
    """64 episodes wait for a tool that returns only when four more have generated all their turns."""
    lines = ("hello", "my order", "bye")
    scenarios = [Scenario(id=f"slow{k}", topic="slow", user_responses=lines) for k in range(SLOW)]
    scenarios += [Scenario(id=f"quick{k}", topic="quick", user_responses=lines) for k in range(QUICK)]
    policy, world = load(tiny_folder), Counter()
    trajectories = collect(
        scenarios,
        policy,
        world,
        Renderer(policy.tokenizer),
        RolloutSettings(
            max_new_tokens=4, on_truncation="continue", concurrency=SLOW + QUICK, error_budget=0.0, step_timeout_s=60
        ),
        group_size=1,
        temperature=1.0,
        run_seed=1,
        iteration=0,
    )
    assert world.most == SLOW
    assert world.turns_meanwhile >= QUICK
    assert {t.stop for t in trajectories} == {"terminated"}
