"""Episodes that go on while the weights change. Events decide the order, not the time."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.errors import BudgetError
from grpo.learner.batch import to_samples
from grpo.learner.logprobs import with_proximal_logprobs
from grpo.messages import Message
from grpo.policy.servers.policy import ServersPolicy
from grpo.policy.servers.server import WrongWeights
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect, first_failure
from grpo.rollout.continuous import ContinuousRollout
from grpo.rollout.live import LiveRollout, LiveRollouts
from grpo.rollout.windows import GroupQueue, QueueState, Window
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory

SCENARIOS = {
    name: Scenario(id=name, user_responses=(f"my order {name}", "and its price", "bye")) for name in "abcdefgh"
}
DRAWS = ("ab", "cd", "ef", "gh")
PLAN = {
    "group_size": 2,
    "max_new_tokens": 5,
    "max_context": 200,
    "on_truncation": "continue",
    "error_budget": 0.0,
    "mode": "continuous",
}


class SlowTool(ConversationEnvironment):
    """The answer to the first turn on these scenarios comes when `wait` has ended."""

    def __init__(self, slow: str, wait: Callable[[], object]) -> None:
        super().__init__(max_turns=3)
        self._slow, self._wait = slow, wait

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        if state.scenario.id in self._slow and state.turn_count == 0:
            waiting = self._wait()
            if asyncio.iscoroutine(waiting):
                await waiting
        return await super().step(state, action)


@pytest.fixture(scope="module")
def policies(tiny_folder: Path) -> list[TransformersPolicy]:
    """Four versions, each with slightly moved weights."""
    first = load(tiny_folder)
    versions = [first]
    for seed in range(3):
        model = copy.deepcopy(versions[-1].model)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        versions.append(TransformersPolicy(model, first.tokenizer))
    return versions


def make_rollout(
    policy: TransformersPolicy | ServersPolicy,
    environment: ConversationEnvironment,
    *,
    windows: int,
    max_staleness: int,
) -> ContinuousRollout:
    settings = RolloutSettings.model_validate({**PLAN, "max_staleness": max_staleness})
    queue = GroupQueue(
        lambda index: DRAWS[index],
        group_size=2,
        max_staleness=max_staleness,
        windows=windows,
        error_budget=0.0,
        policy_hash=policy.hash,
    )
    return ContinuousRollout(
        queue,
        policy,
        environment,
        Renderer(policy.tokenizer),
        settings,
        scenarios=lambda ids: [SCENARIOS[name] for name in ids],
        run_seed=7,
    )


def run_to_end(rollout: ContinuousRollout, react: Callable[[Window], object]) -> list[Window]:
    """Run to the end. `react` is called with each window on the event loop."""
    windows: list[Window] = []

    def deliver(window: Window) -> None:
        windows.append(window)
        react(window)

    async def run() -> None:
        async with asyncio.timeout(240):
            await rollout.run(deliver)

    asyncio.run(run())
    return windows


def scenarios_of(trajectories: Sequence[Trajectory]) -> str:
    return "".join(dict.fromkeys(trajectory.scenario_id for trajectory in trajectories))


def test_without_staleness_the_windows_are_the_rollouts_of_the_iterations_bit_for_bit(
    policies: list[TransformersPolicy],
):
    """Tokens, log-probabilities, seeds and order of three windows, each of the policy of its update."""
    rollout = make_rollout(policies[0], ConversationEnvironment(max_turns=3), windows=3, max_staleness=0)
    windows = run_to_end(rollout, lambda window: rollout.publish(policies[window.index + 1]))
    for index, window in enumerate(windows):
        expected = collect(
            [SCENARIOS[name] for name in DRAWS[index]],
            policies[index],
            ConversationEnvironment(max_turns=3),
            Renderer(policies[index].tokenizer),
            RolloutSettings.model_validate({**PLAN, "max_staleness": 0}),
            group_size=2,
            temperature=1.0,
            run_seed=7,
            iteration=index,
        )
        assert list(window.trajectories) == expected
        assert window.staleness == (0, 0, 0, 0)


def test_an_episode_that_waits_for_a_tool_goes_on_with_the_next_weights(policies: list[TransformersPolicy]):
    """The tool of scenario a answers after the first update. Window 0 does not wait for it, and window 1 has it.

    Its first turn is of version 0, the others are of version 1, and each log-probability is the one of its version.
    """
    answered = asyncio.Event()
    rollout = make_rollout(policies[0], SlowTool("a", answered.wait), windows=2, max_staleness=1)

    def update(window: Window) -> None:
        rollout.publish(policies[window.index + 1])
        asyncio.get_running_loop().call_soon(answered.set)

    first, second = run_to_end(rollout, update)
    assert "a" not in scenarios_of(first.trajectories)
    assert "a" in scenarios_of(second.trajectories)
    slow = [trajectory for trajectory in second.trajectories if trajectory.scenario_id == "a"]
    for trajectory in slow:
        assert trajectory.policies == (policies[0].hash, policies[1].hash)
        starts = [turn.start for turn in trajectory.turns if turn.message.role == "assistant"]
        assert [span.start for span in trajectory.policy_spans] == starts[:2]
        for policy, part in ((policies[0], slice(0, starts[1])), (policies[1], slice(starts[1], None))):
            (sample,) = with_proximal_logprobs(policy.model, to_samples([trajectory]), precision="fp32", max_tokens=999)
            assert sample.proximal_logprobs is not None
            mask = sample.loss_mask[part]
            assert mask.any()
            assert np.abs((sample.proximal_logprobs - sample.sampler_logprobs)[part][mask]).max() < 1e-4
    assert [second.staleness[second.trajectories.index(trajectory)] for trajectory in slow] == [1, 1]


def test_an_episode_that_is_too_stale_is_ended_and_replaced(policies: list[TransformersPolicy]):
    """The tool of a never answers. After window 1 both of its episodes are dropped, and the run ends without them."""
    rollout = make_rollout(policies[0], SlowTool("a", asyncio.Event().wait), windows=3, max_staleness=1)
    windows = run_to_end(rollout, lambda window: rollout.publish(policies[window.index + 1]))
    assert [len(window.dropped) for window in windows] == [0, 2, 0]
    assert {group.draw.scenario_id for group, _ in windows[1].dropped} == {"a"}
    assert all("a" not in scenarios_of(window.trajectories) for window in windows)
    assert [len(window.trajectories) for window in windows] == [4, 4, 4]


def test_a_tool_that_blocks_its_thread_does_not_hold_up_the_update(policies: list[TransformersPolicy]):
    """The tool of e, which begins after the first update, blocks until the caller has done its work.

    With one thread for both sides this would never end.
    """
    blocked, trained = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        assert trained.wait(240)

    rollout = make_rollout(policies[0], SlowTool("e", block), windows=3, max_staleness=1)
    live = LiveRollout(rollout, nullcontext())
    try:
        first, share = live.take()
        assert share is None
        live.publish(policies[1])
        assert blocked.wait(240)
        trained.set()
        second, share = live.take()
        assert share is not None
        assert 0 < share <= 1
        assert (first.window.index, second.window.index) == (0, 1)
    finally:
        live.close()


def test_a_rollout_ends_with_its_run_although_a_tool_is_awaited(policies: list[TransformersPolicy]):
    """The tools of c and d never answer. The rollout is kept under its first window, and ended there."""
    rollout = make_rollout(policies[0], SlowTool("cd", asyncio.Event().wait), windows=2, max_staleness=1)
    live, rollouts = LiveRollout(rollout, nullcontext()), LiveRollouts()
    live.take()
    rollouts.keep("first", live)
    rollouts.end("first")
    assert rollouts.claim("first") is None
    rollouts.end("first")
    with pytest.raises(asyncio.CancelledError):
        live.take()


def test_a_rollout_that_is_kept_in_place_of_another_ends_it():
    """A stage that is tried again begins a second rollout after the same window; the first would go on unseen."""
    ended: list[str] = []
    first: Any = SimpleNamespace(close=lambda: ended.append("first"))
    second: Any = SimpleNamespace(close=lambda: ended.append("second"))
    rollouts = LiveRollouts()
    rollouts.keep("window", first)
    rollouts.keep("window", second)
    assert ended == ["first"]
    assert rollouts.claim("window") is second


def test_the_error_of_a_rollout_is_raised_where_its_window_is_wanted(policies: list[TransformersPolicy]):
    """No episode may fail, and the tool of b raises."""

    def fail() -> None:
        raise KeyError("orders")

    rollout = make_rollout(policies[0], SlowTool("b", fail), windows=1, max_staleness=0)
    live = LiveRollout(rollout, nullcontext())
    with pytest.raises(BudgetError, match=r"1 of 4 episodes have failed, more than rollout\.error_budget 0%.*orders"):
        live.take()
    live.publish(policies[1])
    live.close()


def test_windows_that_were_closed_before_a_failure_are_taken(policies: list[TransformersPolicy]):
    """The tool of c raises after window 0 of a and b was closed, and before it is taken."""
    closed = asyncio.Event()

    class Failing(ConversationEnvironment):
        async def step(self, state: EnvironmentState, action: Message) -> StepResult:
            if state.scenario.id == "c" and state.turn_count == 0:
                await closed.wait()
                raise KeyError("orders")
            if state.scenario.id == "d":
                await asyncio.Event().wait()
            return await super().step(state, action)

    rollout = make_rollout(policies[0], Failing(max_turns=3), windows=2, max_staleness=1)

    class Watched:
        busy_s = 0.0

        async def run(self, deliver: Callable[[Window], None]) -> None:
            def note(window: Window) -> None:
                deliver(window)
                closed.set()

            await rollout.run(note)

    live = LiveRollout(cast(ContinuousRollout, Watched()), nullcontext())
    for thread in threading.enumerate():
        if thread.name == "continuous rollout":
            thread.join(240)
    assert scenarios_of(live.take()[0].window.trajectories) == "ab"
    with pytest.raises(BudgetError, match="orders"):
        live.take()


def _empty_window(index: int) -> Window:
    return Window(index=index, trajectories=(), staleness=(), dropped=(), state=QueueState())


class _TwoWindows:
    """A rollout that delivers two windows and ends."""

    busy_s = 0.0

    async def run(self, deliver: Callable[[Window], None]) -> None:
        deliver(_empty_window(0))
        deliver(_empty_window(1))


class _WrongServer:
    """A rollout that delivers two windows, and the failure of a server once `goes_on` is set."""

    busy_s = 0.0

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    async def run(self, deliver: Callable[[Window], None]) -> None:
        deliver(_empty_window(0))
        await asyncio.to_thread(self.goes_on.wait)
        deliver(_empty_window(1))
        raise WrongWeights("rollout server a: it says that it has other weights")


def test_the_share_in_which_rollout_and_updates_were_busy_is_that_of_the_time_since_the_last_window(
    monkeypatch: pytest.MonkeyPatch,
):
    """The first window was taken at 4 s, after 2 s of rollout. The second was asked for after 5 s of it, taken at 10 s.

    So the rollout was busy for 3 of 6 seconds before the caller began to wait.
    """
    clock = iter([(0.0, 0.0), (4.0, 2.0), (9.0, 5.0), (10.0, 6.0)])
    monkeypatch.setattr(LiveRollout, "_clock", lambda self: next(clock))
    live = LiveRollout(cast(ContinuousRollout, _TwoWindows()), nullcontext())
    assert [live.take()[1] for _ in range(2)] == [None, 0.5]


@pytest.mark.parametrize("taken", [0, 1])
def test_windows_before_wrong_weights_are_discarded(taken: int):
    """Window 1 was closed. If window 0 was taken, and so trained on, the error says that it stays."""
    rollout = _WrongServer()
    live = LiveRollout(cast(ContinuousRollout, rollout), nullcontext())
    for index in range(taken):
        assert live.take()[0].window.index == index
    rollout.goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "continuous rollout":
            thread.join(240)
    with pytest.raises(WrongWeights, match="it says that it has other weights") as failure:
        live.take()
    assert ("are not collected again, because they were trained on" in str(failure.value)) == bool(taken)


def test_code_that_cancels_its_own_episode_ends_the_run_with_its_name(policies: list[TransformersPolicy]):
    """The windows would wait for the episode without end."""

    def cancel() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    rollout = make_rollout(policies[0], SlowTool("a", cancel), windows=2, max_staleness=1)
    with pytest.raises(BaseExceptionGroup) as failures:
        run_to_end(rollout, lambda window: None)
    assert "scenario a sample 0: the task of the episode was cancelled by code of the environment or" in str(
        first_failure(failures.value)
    )
