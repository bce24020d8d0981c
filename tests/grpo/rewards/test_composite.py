from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence

import pytest

from grpo.errors import ConfigError, RewardError, Unscored
from grpo.messages import Message
from grpo.rewards import (
    CompositeReward,
    ConstantReward,
    MultiObjectiveReward,
    RewardContext,
    RewardFunction,
    RewardResult,
    pareto_front,
    reward_function,
)
from tests.grpo.rewards.scoring import scored


class Fixed(RewardFunction):
    """Always the same score, under a name of its own."""

    def __init__(self, name: str, score: float, *, weight: float = 1.0) -> None:
        self.name = name
        super().__init__(weight=weight)
        self._score = score

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        return RewardResult(score=self._score)


def _score(reward: RewardFunction) -> float:
    return scored(reward, "Hi", "Hello").score


def test_a_list_of_rewards_and_one_of_pairs_are_the_same():
    """.4·1 + .6·.5 = .7; the weights stand beside it."""
    own = CompositeReward([Fixed("a", 1.0, weight=0.4), Fixed("b", 0.5, weight=0.6)])
    pairs = CompositeReward([(Fixed("a", 1.0, weight=0.9), 0.4), (Fixed("b", 0.5), 0.6)])
    result = scored(pairs, "Hi", "Hello")
    assert result == scored(own, "Hi", "Hello")
    assert result.score == pytest.approx(0.7)
    assert result.breakdown == {"a": 1.0, "b": 0.5}
    assert result.metadata["weights"] == {"a": 0.4, "b": 0.6}


def test_the_parts_of_each_component_are_kept():
    """The metadata explain a score down to its last part."""
    parts = CompositeReward([reward_function()(lambda turns: RewardResult(score=1.0, breakdown={"x": 0.5}))])
    assert scored(parts, "Hi", "Hello").metadata["<lambda>"]["parts"] == {"x": 0.5}


@pytest.mark.parametrize("weight", [-0.1, 1.5])
def test_a_weight_outside_zero_and_one_warns(weight: float):
    """With the reward's name; also where a pair gives it."""
    with pytest.warns(UserWarning, match=r"reward constant has weight .* outside \[0, 1\]"):
        ConstantReward(weight=weight)
    with pytest.warns(UserWarning, match="constant"):
        CompositeReward([(ConstantReward(), weight)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ConstantReward(weight=1.0)


def test_a_component_below_its_floor_vetoes():
    """.9 of something else makes up for nothing; at the floor it counts."""
    floors = {"safety": 0.5}
    unsafe = scored(CompositeReward([(Fixed("safety", 0.4), 0.1), (Fixed("b", 1.0), 0.9)], floors=floors), "Hi", "Hm")
    assert (unsafe.score, unsafe.metadata["vetoed"]) == (0.0, ["safety"])
    assert _score(CompositeReward([(Fixed("safety", 0.5), 0.1), (Fixed("b", 1.0), 0.9)], floors=floors)) > 0.9


def test_a_veto_is_the_least_score_where_a_weight_is_negative():
    """Σ of the negative weights: −.5"""
    with pytest.warns(UserWarning, match="outside"):
        reward = CompositeReward([(Fixed("a", 0.0), 0.5), (Fixed("b", 0.2), -0.5)], floors={"a": 0.1})
    assert _score(reward) == -0.5


def test_a_constraint_that_could_not_be_checked_does_not_hold():
    """An optional component without a score is left out, but not where it has a floor: the episode gets no reward."""

    class Away(Fixed):
        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            raise Unscored("the judge is away")

    parts = [(Away("safety", 1.0), 0.1), (Fixed("b", 1.0), 0.9)]
    assert _score(CompositeReward(parts, optional=["safety"])) == 0.9
    with pytest.raises(Unscored, match="safety: the judge is away"):
        scored(CompositeReward(parts, optional=["safety"], floors={"safety": 0.5}), "Hi", "Hello")


def test_a_floor_of_no_component_is_refused():
    """A misspelt name would veto nothing."""
    with pytest.raises(ConfigError, match="saftey"):
        CompositeReward([Fixed("safety", 1.0)], floors={"saftey": 0.5})


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("weighted_sum", 0.725),  # .25·.5 + .75·.8
        ("geometric_mean", 0.5**0.25 * 0.8**0.75),
        ("min", 0.5),
        ("product", 0.4),
    ],
)
def test_objectives_are_aggregated_by_the_named_function(aggregation: str, expected: float):
    """Scores .5 and .8; weights 1 and 3 are normalized to .25 and .75."""
    objectives = [
        {"name": "short", "reward": Fixed("x", 0.5), "weight": 0.2},
        {"name": "kind", "reward": Fixed("x", 0.8), "weight": 0.6},
    ]
    result = scored(MultiObjectiveReward(objectives, aggregation=aggregation), "Hi", "Hello")  # type: ignore[arg-type]
    assert result.score == pytest.approx(expected)
    assert result.breakdown == {"short": 0.5, "kind": 0.8}


def test_without_normalizing_the_weights_stand_as_they_are():
    """.2·.5 + .6·.8 = .58"""
    pairs = [(Fixed("a", 0.5), 0.2), (Fixed("b", 0.8), 0.6)]
    assert _score(MultiObjectiveReward(pairs, normalize=False)) == pytest.approx(0.58)


def test_one_zero_takes_the_geometric_mean_with_it():
    """However much the other counts."""
    pairs = [(Fixed("a", 0.0), 0.01), (Fixed("b", 1.0), 0.99)]
    assert _score(MultiObjectiveReward(pairs, aggregation="geometric_mean")) == 0.0


@pytest.mark.parametrize(("aggregation", "message"), [("pareto", "pareto_front"), ("median", "unknown. Use one of")])
def test_an_aggregation_that_gives_no_score_is_refused(aggregation: str, message: str):
    """A front is for selection."""
    with pytest.raises(ConfigError, match=message):
        MultiObjectiveReward([Fixed("a", 1.0)], aggregation=aggregation)


def test_an_objective_without_its_weight_is_refused():
    """The key is named."""
    with pytest.raises(ConfigError, match="weight"):
        MultiObjectiveReward([{"name": "a", "reward": Fixed("a", 1.0)}])  # type: ignore[list-item]


def test_the_pareto_front_holds_the_rows_that_are_not_dominated():
    """The fourth is beaten by the third; equals stand together."""
    assert pareto_front([[1, 0], [0, 1], [0.5, 0.5], [0.4, 0.4], [0.5, 0.5]]) == [0, 1, 2, 4]
    with pytest.raises(RewardError, match="table"):
        pareto_front([1, 2])


def test_a_function_or_a_coroutine_is_a_reward():
    """A number or a result; with or without a context; the decorator's weight counts in a composite."""

    @reward_function(weight=0.5)
    async def waits(turns: Sequence[Message], context: RewardContext | None = None) -> float:
        await asyncio.sleep(0)
        return 1.0 if context is not None and context.scenario_id == "s" else 0.0

    @reward_function(weight=0.5)
    def counts(turns: Sequence[Message]) -> float:
        return len(turns) / 4

    assert _score(CompositeReward([waits, counts])) == 0.75  # .5·1 + .5·2/4
    assert [waits.name, counts.name] == ["waits", "counts"]


def test_a_class_with_a_plain_compute_reward_is_adapted():
    """Its bound method is a function like any other."""

    class SimpleReward:
        def compute_reward(self, turns: Sequence[Message]) -> float:
            return 0.5

    assert _score(reward_function()(SimpleReward().compute_reward)) == 0.5


@pytest.mark.parametrize("returned", [None, "0.5", [], {"score": 1.0}])
def test_a_function_must_return_a_number_or_a_result(returned: object):
    """With its name and what it returned."""
    with pytest.raises(RewardError, match=r"reward <lambda> returned"):
        _score(reward_function()(lambda turns: returned))  # type: ignore[arg-type, return-value]


def test_a_reward_without_a_name_has_that_of_its_class():
    """As in the guide."""

    class BusinessMetricReward(RewardFunction):
        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            return RewardResult(score=0.85, breakdown={"conversion": 0.8, "satisfaction": 0.9})

    result = scored(CompositeReward([BusinessMetricReward()]), "Hi", "Hello")
    assert result.breakdown == {"business_metric": 0.85}


def test_a_plain_function_is_a_component() -> None:
    """Alone, or with its weight: .5 of 1 and 1 of .25 are .75."""

    def one(turns: object) -> float:
        return 1.0

    def quarter(turns: object) -> float:
        return 0.25

    reward = CompositeReward([(one, 0.5), quarter])
    assert reward.weights == {"one": 0.5, "quarter": 1.0}
    assert reward.combine({"one": 1.0, "quarter": 0.25}) == 0.75
