"""What reward functions return, and the columns of scenarios that they take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError, RewardError
from grpo.learner.credit_assignment import token_rewards
from grpo.messages import Message
from grpo.rewards.composite import CompositeReward, MultiObjectiveReward, as_reward
from grpo.rewards.hacking.check import probe_reward
from grpo.rewards.reward import Episode, FunctionReward, RewardContext, RewardFunction, RewardResult, check_columns
from grpo.rewards.score import score
from grpo.scenario import Metadata, Scenario
from grpo.trajectories import Trajectory, TrajectoryGroup, Turn
from grpo.user_numbers import as_number
from tests.doubles import make_trajectory

SCENARIO = Scenario(
    id="s", user_responses=("1 + 1?",), world={"answer": "2", "level": 3}, metadata=Metadata(category="sums")
)


def two_turns(**changes: Any) -> Trajectory:
    """P A1 E A2, one token each; the agent's are trained on."""
    roles = ("user", "assistant", "user", "assistant")
    turns = [Turn(message=Message(role=role, content="x"), start=k, stop=k + 1) for k, role in enumerate(roles)]
    return make_trajectory(
        **{
            "turns": tuple(turns),
            "token_ids": np.arange(4, dtype=np.int32),
            "loss_mask": np.array([False, True, False, True]),
            "sampler_logprobs": np.zeros(4, np.float32),
            **changes,
        }
    )


def scored(function: Callable[..., Any], trajectory: Trajectory | None = None) -> Trajectory:
    [result] = score([trajectory or two_turns()], FunctionReward(function), {"s": SCENARIO})
    return result


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(True), 1.0),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
    ],
)
def test_a_number_of_any_library_is_a_score(value: Any, number: float):
    """As a plain number, as the score and in the breakdown of a result; sync and async."""

    async def awaited(turns: Any) -> Any:
        return value

    assert scored(lambda turns: value).terminal_reward == number
    assert scored(awaited).terminal_reward == number
    result = scored(lambda turns: RewardResult(score=value, breakdown={"part": value}))
    assert (result.terminal_reward, result.breakdown) == (number, {"part": number})
    assert type(result.terminal_reward) is type(result.breakdown["part"]) is float


@pytest.mark.parametrize(
    "value",
    [
        None,
        "0.5",
        np.str_("0.5"),
        np.array("0.5"),
        b"0.5",
        np.array([0.5]),
        torch.tensor([[0.5]]),
        1j,
        np.complex128(1),
        {"score": 1},
        float,
    ],
)
def test_what_is_not_one_number_is_none(value: Any):
    """An array with one entry may be a list with one turn."""
    assert as_number(value) is None


@pytest.mark.parametrize(
    "breakdown", [{1: 0.5}, {"part": float("nan")}, {"\ud83d": 0.5}, {"part": "x"}, [("part", 0.5)]]
)
def test_a_breakdown_that_no_table_can_hold_is_one_sentence(breakdown: Any):
    """Names are texts of UTF-8, and parts are numbers; otherwise writing the scores would end the stage."""
    with pytest.raises(RewardError, match=r"scenario s: sample 0: the breakdown of a reward is .*Give a dict"):
        scored(lambda turns: RewardResult(score=0.5, breakdown=breakdown))


def test_a_class_may_return_a_number_without_async():
    """As people write it."""

    class Half(RewardFunction):
        def compute_reward(self, turns: Any, context: RewardContext) -> Any:
            return np.float32(0.5)

    [result] = score([two_turns()], Half())
    assert result.terminal_reward == 0.5


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
def test_a_list_gives_each_turn_its_reward(make: Callable[[list[float]], Any]):
    """[.5 .25] → total .75; the tokens of A1 and A2 get .5 and .25."""
    result = scored(lambda turns: make([0.5, 0.25]))
    assert (result.turn_rewards, result.terminal_reward, result.total_reward) == ((0.5, 0.25), 0.0, 0.75)
    [[tokens]] = token_rewards([TrajectoryGroup(scenario_id="s", trajectories=(result,))], TrainingSettings())
    assert tokens is not None
    assert tokens.tolist() == [0.0, 0.5, 0.0, 0.25]


def test_turn_scores_are_added_to_the_rewards_of_the_environment():
    """Environment .1 for the first turn, none for the second, which was cut off; reward [.5 .25] → .6 .25"""
    result = scored(lambda turns: [0.5, 0.25], two_turns(turn_rewards=(0.1,), stop="truncated"))
    assert result.turn_rewards == (0.6, 0.25)
    assert result.total_reward == pytest.approx(0.85)


def test_turn_scores_of_a_composite_are_weighted():
    """.5 · [1 0] + 1 · .3: the turns get .5 and 0, the end .3."""

    def by_turn(turns: Any) -> list[float]:
        return [1.0, 0.0]

    def whole(turns: Any) -> float:
        return 0.3

    parts = [(FunctionReward(by_turn), 0.5), (FunctionReward(whole), 1.0)]
    [result] = score([two_turns()], CompositeReward(parts))
    assert result.turn_rewards == (0.5, 0.0)
    assert result.terminal_reward == pytest.approx(0.3)
    assert result.breakdown == {"by_turn": 1.0, "whole": 0.3}
    [least] = score([two_turns()], MultiObjectiveReward(parts, aggregation="min"))
    assert (least.turn_rewards, least.terminal_reward) == ((), 0.3)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([0.5], "reward f returned 1 numbers for 2 turns of the agent"),
        ([0.5, None], "reward f returned a value of type list"),
        ([0.5, float("nan")], "reward nan of a turn is not finite"),
        (np.ones((2, 2)), "reward f returned a value of type ndarray"),
    ],
)
def test_a_list_that_does_not_fit_the_turns_is_one_sentence(value: Any, reason: str):
    """With scenario and sample."""

    def f(turns: Any) -> Any:
        return value

    with pytest.raises(RewardError, match=f"^scenario s: sample 0: {reason}"):
        scored(f)


def by_name(turns: Any, answer: str, level: int = 0, absent: int = 7) -> RewardResult:
    return RewardResult(score=float(answer) + level, metadata={"absent": absent})


def keyword(turns: Any, *, answer: str) -> float:
    return float(answer)


def after_context(turns: Any, context: RewardContext, category: str) -> float:
    return 1.0 if context.category and category == "sums" else 0.0


def everything(turns: Any, **columns: Any) -> float:
    return columns["level"] + (columns["id"] == "s")


async def in_world(turns: Any, ctx: Any) -> float:
    return float(ctx.scenario.world["answer"])


def episode_by_type(turns: Any, episode: RewardContext) -> float:
    return float(episode.sample == 0)


def by_position(*arguments: Any) -> float:
    return float(len(arguments))


@pytest.mark.parametrize(
    ("function", "number"),
    [
        (by_name, 5.0),
        (keyword, 2.0),
        (after_context, 1.0),
        (everything, 4.0),
        (in_world, 2.0),
        (episode_by_type, 1.0),
        (by_position, 2.0),
        (lambda turns, _: 1.0, 1.0),
        (lambda turns: len(turns), 4.0),
    ],
)
def test_columns_of_a_scenario_reach_a_function_by_name(function: Callable[..., Any], number: float):
    """Those of its world, its fields and its metadata; the context by its name or type."""
    assert scored(function).terminal_reward == number


@pytest.mark.parametrize("second", ["world", "keyword"])
def test_a_column_that_is_missing_is_named_with_those_that_exist(second: str):
    """A wrong parameter, and a wrong key of the world."""

    def f(turns: Any, anser: str) -> float:
        return 1.0

    def g(turns: Any, context: RewardContext) -> float:
        assert context.scenario is not None
        return float(context.scenario.world["anser"])

    with pytest.raises(RewardError) as raised:
        scored(f if second == "keyword" else g)
    assert "anser" in str(raised.value)
    assert "Its columns are answer, level, id, " in str(raised.value)
    assert "\n" not in str(raised.value)


def test_columns_are_checked_before_an_episode_is_played():
    """The second scenario lacks the answer; a composite needs what its components need."""
    other = SCENARIO.model_copy(update={"id": "t", "world": {"key": 1}})
    reward = CompositeReward([FunctionReward(keyword)])
    check_columns(reward, [SCENARIO])
    with pytest.raises(RewardError, match=r"^scenario t: reward composite takes answer, .*Its columns are key, id, "):
        check_columns(reward, [SCENARIO, other])


def test_a_function_that_needs_columns_is_not_probed():
    """The probes' scenarios do not have them; one that reads `world` is told how to say so."""
    assert not FunctionReward(keyword).probed
    assert FunctionReward(everything).probed
    with pytest.raises(RewardError, match=r"KeyError: 'answer'.*Its columns are .*sets probed = False"):
        probe_reward(FunctionReward(in_world))


def test_a_function_of_trl_is_told_its_kind():
    """It would get turns for completions."""

    def accuracy(completions: Any, answer: Any) -> list[float]:
        return [1.0]

    with pytest.raises(ConfigError, match=r"reward accuracy takes completions, as functions of TRL do\. Set kind: trl"):
        FunctionReward(accuracy)


def scaled(completions: Any, answer: Any, by: float, **columns: Any) -> list[float]:
    return [
        by * (column == "2" and turns[-1]["content"] == "x") for turns, column in zip(completions, answer, strict=True)
    ]


class Scale:
    """A reward with a number of its own, as a method and as an instance."""

    def score(self, completions: Any, answer: Any, **columns: Any) -> list[float]:
        return scaled(completions, answer, by=0.5)

    __call__ = score


@pytest.mark.parametrize(
    "function",
    [
        partial(scaled, by=0.5),
        Scale(),
        Scale().score,
        lambda completions, answer: scaled(completions, answer, by=0.5),
    ],
)
def test_a_function_of_trl_itself_is_a_reward(function: Callable[..., Any]):
    """In a notebook, where no config could name its kind: by itself, and with a weight next to a reward of turns."""
    [alone] = score([two_turns()], as_reward(function), {"s": SCENARIO})
    assert alone.terminal_reward == 0.5
    [both] = score([two_turns()], CompositeReward([(function, 0.5), (constant, 0.25)]), {"s": SCENARIO})
    assert both.terminal_reward == 0.5 * 0.5 + 0.25


def constant(turns: Any) -> float:
    return 1.0


def test_a_turn_that_is_read_as_a_dict_names_the_attribute():
    """As rewards of other libraries read messages."""
    with pytest.raises(RewardError, match=r"TypeError: a Message has attributes and no keys\. Write message\.content"):
        scored(lambda turns: len(turns[-1]["content"]))


def test_two_functions_of_one_name_are_told_how_to_differ():
    """Two lambdas, or one function with two options."""
    with pytest.raises(ConfigError, match=r"give two functions different names by `__name__`"):
        CompositeReward([lambda turns: 0.0, lambda turns: 1.0])


def compute_score(data_source: Any, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return float(ground_truth in solution_str)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> torch.Tensor:
    return torch.tensor([float(label in query) for query, label in zip(queries, labels, strict=True)])


def rubric_reward(completion: str, answer: str) -> float:
    return float(answer in completion)


@pytest.mark.parametrize(
    ("function", "contract", "column"),
    [
        (compute_score, "verl's compute_score", "ground_truth"),
        (reward_func, "OpenRLHF's reward_func", "label"),
        (rubric_reward, "the rewards of verifiers' rubrics", "answer"),
    ],
)
def test_a_reward_of_another_library_is_refused_with_the_function_to_write(
    function: Callable[..., Any], contract: str, column: str
) -> None:
    """The function of the message is one of kind python, and scores the agent's last reply: 2 is in "x 2", 3 is not."""
    with pytest.raises(ConfigError, match=f"as {contract} does") as refusal:
        FunctionReward(function)
    names: dict[str, Any] = {function.__name__: function}
    exec(str(refusal.value).partition("such as: ")[2], names)
    turns = [Message(role="user", content="1 + 1?"), Message(role="assistant", content="x 2")]
    for answer, expected in (("2", 1.0), ("3", 0.0)):
        scenario = Scenario(id="s", user_responses=("1 + 1?",), world={column: answer})
        context = RewardContext(scenario_id="s", category="sums", stop="terminated", scenario=scenario)
        result = FunctionReward(names["reward"]).compute_reward(turns, context)
        assert asyncio.run(result).score == expected  # type: ignore[arg-type]


def test_completion_and_answer_may_be_the_turns_and_a_column():
    """Nothing tells another contract if the completion is not a text."""

    def first_turn(completion: Any, answer: str) -> float:
        return float(answer in completion[-1].content)

    turns = [Message(role="user", content="1 + 1?"), Message(role="assistant", content="x 2")]
    scenario = Scenario(id="s", user_responses=("1 + 1?",), world={"answer": "2"})
    context = RewardContext(scenario_id="s", category="sums", stop="terminated", scenario=scenario)
    assert asyncio.run(FunctionReward(first_turn).compute_reward(turns, context)).score == 1.0  # type: ignore[arg-type]


def test_a_reward_without_a_scenario_says_so():
    """In a notebook a trajectory may have none."""
    episode = Episode(turns=(), context=RewardContext(scenario_id="s", category="c", stop="terminated"))
    with pytest.raises(RewardError, match="reward keyword takes answer, but the episode has come without"):
        asyncio.run(FunctionReward(keyword).compute_group([episode]))


def test_an_integer_that_python_refuses_to_write_is_described():
    """Python raises ValueError for the text of an integer of more than 4300 digits."""
    with pytest.raises(RewardError, match="returned an integer of more than 30 digits"):
        scored(lambda turns: 10**5000)


def test_a_class_in_place_of_a_function_is_refused_when_the_reward_is_made():
    """Otherwise it would be called with the turns, and the first episode would fail with Python's words."""

    class Short:
        def __call__(self, turns: Any) -> float:
            return 1.0 / len(turns)

    with pytest.raises(ConfigError, match=r"reward Short is a class, but not a RewardFunction.*give an instance"):
        FunctionReward(Short)
    assert scored(Short()).terminal_reward == 0.25
