"""What an environment or a reward does to the objects that it gets changes no other episode and no artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.rollout import RolloutSettings
from grpo.copies import Copies, ScenarioCopies
from grpo.environments.environment import Environment, EnvironmentState, StepResult
from grpo.messages import Message, ToolCall
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.tokenizer import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rewards.composite import CompositeReward
from grpo.rewards.reward import FunctionReward, RewardContext
from grpo.rewards.score import score
from grpo.rollout.collect import collect
from grpo.scenario import Expected, Scenario
from grpo.trajectories import Outcome, Trajectory, Turn
from tests.doubles import make_trajectory


def _scenario() -> Scenario:
    return Scenario(
        id="order-12", user_responses=("Hi.",), world={"stock": [3]}, expected=Expected(state={"stock": [2]})
    )


class Shop(Environment):
    """Sells one piece of the scenario's own stock, and keeps its state from one episode to the next."""

    def __init__(self) -> None:
        self.state = {"sold": 0}

    async def check(self, scenario: Scenario) -> None:
        scenario.world["stock"][0] += 10

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        assert scenario is not None
        scenario.world["stock"][0] -= 1
        question = Message(role="user", content=f"{scenario.world['stock'][0]} left")
        return EnvironmentState(scenario=scenario, history=(question,))

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        return StepResult(state=state, response=None, terminated=True)

    def verify(self, state: EnvironmentState) -> Outcome:
        self.state["sold"] += 1
        return Outcome(success=True, checks={"sold": True}, state=self.state)


@pytest.fixture
def played(tiny_folder: Path) -> list[Trajectory]:
    """Three episodes of one scenario."""
    return collect(
        [_scenario()], ScriptedPolicy(["Bye."]), Shop(), Renderer(load_tokenizer(tiny_folder)),
        RolloutSettings(max_context=2000, concurrency=1, error_budget=0.0), group_size=3, temperature=1.0, run_seed=0,
        iteration=0,
    )  # fmt: skip


def test_each_episode_begins_with_the_scenario_as_it_was_written(played: list[Trajectory]):
    """Otherwise the samples of a group would have different prompts, in an order that a retry changes."""
    assert [trajectory.messages[0].content for trajectory in played] == ["2 left"] * 3
    assert {trajectory.scenario_hash for trajectory in played} == {_scenario().hash}


def test_the_outcome_of_an_episode_is_the_one_at_its_end(played: list[Trajectory]):
    """An environment that goes on with the same dict does not change the record of an earlier episode."""
    assert [trajectory.outcome.state for trajectory in played if trajectory.outcome] == [
        {"sold": 1}, {"sold": 2}, {"sold": 3}
    ]  # fmt: skip


def test_a_reward_cannot_change_what_another_episode_or_the_table_has():
    """Scenario, outcome and calls that it gets are copies; each of two episodes sees the stock of 3."""

    def tamper(turns: list[Message], context: RewardContext) -> float:
        assert context.scenario is not None
        assert context.outcome is not None
        stock = context.scenario.world["stock"]
        stock[0] += 1
        context.outcome.checks["sold"] = True  # type: ignore[index]
        context.outcome.state["stock"].append(9)
        turns[0].tool_calls[0].arguments["order"] = "13"  # type: ignore[index]
        return float(stock[0])

    call = Message(role="assistant", content="", tool_calls=(ToolCall(name="sell", arguments={"order": "12"}),))
    before = [
        make_trajectory(
            sample=sample,
            turns=(Turn(message=call, start=0, stop=1),),
            outcome=Outcome(success=False, checks={"sold": False}, state={"stock": [3]}),
        )
        for sample in range(2)
    ]
    after = list(score(before, FunctionReward(tamper), {"s": _scenario()}))
    assert [trajectory.total_reward for trajectory in after] == [4.0, 4.0]
    assert [trajectory.outcome for trajectory in after] == [
        Outcome(success=False, checks={"sold": False}, state={"stock": [3]})
    ] * 2
    assert call.tool_calls[0].arguments == {"order": "12"}


def test_a_component_cannot_change_what_the_next_one_sees():
    """Each sees the stock of 3, in either order of the keys."""

    def sells(turns: list[Message], context: RewardContext) -> float:
        assert context.scenario is not None
        assert context.outcome is not None
        context.outcome.state["stock"].append(9)
        context.scenario.world["stock"][0] -= 3
        return 0.0

    def counts(turns: list[Message], context: RewardContext) -> float:
        assert context.scenario is not None
        assert context.outcome is not None
        return float(context.scenario.world["stock"][0] + len(context.outcome.state["stock"]))

    episodes = [make_trajectory(outcome=Outcome(success=False, checks={"sold": False}, state={"stock": [3]}))]
    for order in ((sells, counts), (counts, sells)):
        reward = CompositeReward([FunctionReward(function) for function in order])
        [trajectory] = score(episodes, reward, {"s": _scenario()})
        assert trajectory.total_reward == 4.0  # 3 + 1


class Unpicklable:
    """A connection of the user's own, which pickle refuses and which can be copied in Python."""

    def __init__(self) -> None:
        self.stock, self.connect = [3], lambda: None


class Unreadable(list[int]):
    """Written by pickle, but not read."""

    def __deepcopy__(self, memo: dict[int, object]) -> Unreadable:
        return Unreadable(self)

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("not a number",)


def test_copies_share_nothing_that_can_change():
    """Neither with the scenario nor with one another. They are the scenario as it was when the copies were prepared."""
    scenario = _scenario()
    copies = ScenarioCopies(scenario)
    first, second = copies.copy(), copies.copy()
    assert first == second == scenario
    assert first.hash == scenario.hash
    assert first.model_fields_set == scenario.model_fields_set
    first.world["stock"][0] = 0
    first.expected.state["stock"].append(1)
    scenario.world["stock"][0] = 7
    assert second == copies.copy() == _scenario()


def test_what_pickle_cannot_copy_is_copied_all_the_same():
    """A lambda cannot be written, and another object cannot be read."""
    for value, stock in ((Unpicklable(), lambda value: value.stock), (Unreadable([3]), lambda value: value)):
        copies = Copies({"shop": value})
        stock(copies.copy()["shop"]).append(4)
        assert list(stock(copies.copy()["shop"])) == [3]
        assert list(stock(value)) == [3]
