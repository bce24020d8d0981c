"""Reward interface: a score for one finished conversation, or for the group of one scenario."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from grpo import interrupts
from grpo.copies import Copies, ScenarioCopies
from grpo.errors import ConfigError, RewardError, Unscored
from grpo.messages import Message
from grpo.rewards.parameters import Parameters
from grpo.rewards.returned import as_numbers, per_turn
from grpo.scenario import Scenario
from grpo.scenarios.columns import columns, describe_columns, require_columns
from grpo.strict_json import is_text
from grpo.trajectories import Outcome, Stop, Trajectory
from grpo.user_failures import on_one_line, shown, user_code
from grpo.user_numbers import as_number


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """Facts about an episode in addition to its messages."""

    scenario_id: str
    category: str
    stop: Stop
    outcome: Outcome | None = None
    sample: int = 0
    scenario: Scenario | None = None
    """Start of the episode: its context and its expected outcome."""
    completion_ids: tuple[int, ...] = ()
    """Token ids from the first turn of the agent on. Empty if no model generated the turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Input of a reward: a finished conversation."""

    turns: tuple[Message, ...]
    context: RewardContext

    @classmethod
    def of(cls, trajectory: Trajectory, scenario: Scenario | ScenarioCopies | None = None) -> Episode:
        """Messages and context of a trajectory, as copies, so that a reward that changes them changes nothing else.

        The episodes of a group share one `ScenarioCopies`, so that their scenario is pickled only once.
        """
        context = RewardContext(
            scenario_id=trajectory.scenario_id,
            category=trajectory.category,
            stop=trajectory.stop,
            outcome=trajectory.outcome,
            sample=trajectory.sample,
            completion_ids=trajectory.completion_ids,
        )
        copies = ScenarioCopies(scenario) if isinstance(scenario, Scenario) else scenario
        return EpisodeCopies(cls(turns=trajectory.messages, context=context), copies).copy()


class EpisodeCopies:
    """Copies of an episode as it is when this object is made. They share what cannot change."""

    def __init__(self, episode: Episode, scenario: ScenarioCopies | None = None) -> None:
        self._episode, context = episode, episode.context
        self._scenario = scenario
        if scenario is None and context.scenario is not None:
            self._scenario = ScenarioCopies(context.scenario)
        outcome = ({}, {}) if context.outcome is None else (dict(context.outcome.checks), dict(context.outcome.state))
        has_dicts = any(turn.tool_calls or type(turn) is not Message for turn in episode.turns)
        self._parts = Copies((*outcome, episode.turns if has_dicts else ()))

    def copy(self) -> Episode:
        """A copy that shares no dict or list with the episode and with other copies."""
        checks, state, turns = self._parts.copy()
        outcome, context = self._episode.context.outcome, self._episode.context
        return Episode(
            turns=turns or self._episode.turns,
            context=replace(
                context,
                outcome=None if outcome is None else replace(outcome, checks=checks, state=state),
                scenario=None if self._scenario is None else self._scenario.copy(),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """A score and its parts. Numbers of NumPy and torch become floats."""

    score: float
    breakdown: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    turn_scores: Sequence[float] = ()
    """Parts of the score that belong to single turns of the agent, one per turn. Empty if the score has none."""

    def __post_init__(self) -> None:
        score = as_number(self.score)
        if score is None:
            raise RewardError(f"reward {shown(self.score)} is not a number. Raise an error or return a number")
        if not math.isfinite(score):
            raise RewardError(f"reward {score} is not finite. Raise an error or return a number")
        if not isinstance(self.metadata, Mapping):
            raise RewardError(f"the metadata of a reward are {shown(self.metadata)}. Give a dict, or leave them out")
        parts = dict(self.breakdown) if isinstance(self.breakdown, Mapping) else {"": None}
        breakdown = {
            name: number for name, part in parts.items() if is_text(name) and (number := as_number(part)) is not None
        }
        if len(breakdown) < len(parts) or not all(map(math.isfinite, breakdown.values())):
            raise RewardError(
                f"the breakdown of a reward is {shown(self.breakdown)}. Give a dict of finite numbers by name"
            )
        turn_scores = as_numbers(self.turn_scores)
        if turn_scores is None or not all(map(math.isfinite, turn_scores)):
            raise RewardError(
                f"the turn_scores of a reward are {shown(self.turn_scores)}. Give a finite number for each turn"
            )
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "breakdown", breakdown)
        object.__setattr__(self, "turn_scores", turn_scores)


class RewardFunction(ABC):
    """Base of all rewards. `weight` is the share of the score in a composite, and warns if it is outside [0, 1].

    A reward that scores one conversation at a time implements `compute_reward`. If it compares the group of a scenario,
    it is a `GroupReward`. Both raise or return `Unscored` for an episode that they cannot score.
    """

    name: str
    """By default the class's name: `ResponseQualityReward` is response_quality."""
    probed: ClassVar[bool] = True
    """Tested by the reward hacking check. False for a control, a verified outcome, or a judge that costs per call."""
    needed_columns: Sequence[str] = ()
    """Columns that every scenario must have. A run looks for them before its first rollout."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Reward") or "Reward").lower()

    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = checked_weight(weight, self.name)

    @classmethod
    def files(cls, options: Mapping[str, Any]) -> Sequence[str | Path]:
        """Files and folders that a reward with these options reads. If one changes, cached scores become invalid.

        Do not declare files that Python's `open` reads during scoring, because they are noticed anyway.
        """
        return ()

    @abstractmethod
    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Score a conversation, usually in [0, 1]. Higher is better."""

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Score the group of one scenario, in its order. By default each episode is scored by itself."""
        return list(await asyncio.gather(*(self._single(episode) for episode in episodes)))

    async def _single(self, episode: Episode) -> RewardResult | Unscored:
        try:
            interrupts.renew()  # rewards of several episodes may block one after the other
            with errors_at(f"sample {episode.context.sample}"), naming_columns(episode), reward_code(self.name):
                returned: Any = self.compute_reward(episode.turns, episode.context)
                result = await returned if inspect.isawaitable(returned) else returned
                return as_result(result, episode, self.name)
        except Unscored as reason:
            return reason


class GroupReward(RewardFunction):
    """Base of the rewards that compare the episodes of a group."""

    @abstractmethod
    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Score the group of one scenario, in its order."""

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Score one conversation as a group of one."""
        [result] = await self.compute_group([Episode(turns=tuple(turns), context=context)])
        if isinstance(result, Unscored):
            raise result
        return result


Score: TypeAlias = float | Sequence[float] | RewardResult
Scorer: TypeAlias = Callable[..., Score | Awaitable[Score]]
"""Called with the turns, and with the context and columns of the scenario for which it has parameters."""


class FunctionReward(RewardFunction):
    """Scores with a function that returns, or awaits, a number, a number for each turn, or a `RewardResult`.

        def f(turns)                       the messages
        def f(turns, context)              and the `RewardContext`
        def f(turns, answer, level=1)      and columns of the scenario: its fields, and the keys of metadata and `world`

    If the function needs columns, it is not probed, because the probes' scenarios do not have them.
    """

    def __init__(self, function: Scorer, *, weight: float = 1.0) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        if isinstance(function, type):
            raise ConfigError(
                f"reward {self.name} is a class, but not a RewardFunction. Make it a subclass of RewardFunction, or "
                "give an instance with __call__(self, turns, context)"
            )
        super().__init__(weight=weight)
        self._function = function
        self._parameters = Parameters.of(function, self.name)
        self.needed_columns = self._parameters.needed
        self.probed = bool(getattr(function, "probed", not self.needed_columns))  # type: ignore[misc]

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Call the function. Raises `RewardError` if it does not return a score, or if a column is missing."""
        given, named = self._parameters.arguments(context, context.scenario, f"reward {self.name}")
        returned = self._function(turns, *given, **named)
        value = await returned if inspect.isawaitable(returned) else returned
        result = as_result(value, Episode(turns=tuple(turns), context=context), self.name)
        if isinstance(result, Unscored):
            raise result
        return result


def reward_function(*, weight: float = 1.0) -> Callable[[Scorer], FunctionReward]:
    """Make a reward of the decorated function.

    @reward_function(weight=0.5)
    async def politeness(turns, context=None) -> float: ...
    """
    return lambda function: FunctionReward(function, weight=weight)


def reward_code(name: str) -> user_code:
    """Turn an exception of a reward's own code into a `RewardError` with its name, the place and the remedy.

    A failed connection keeps its type, so that the stage is tried again.
    """
    remedy = "Correct it. `grpo check-reward` runs it on known replies"
    return user_code(f"reward {name}", remedy=remedy, error=RewardError, transient=True)


def as_result(returned: Any, episode: Episode, name: str) -> RewardResult | Unscored:
    """Result from the value that a reward returned for an episode. The score of a list is its sum.

    Raises `RewardError` if the value is not a number, a list with one number per turn of the agent, or a result.
    """
    if isinstance(returned, Unscored):
        return returned
    turns = sum(turn.role == "assistant" for turn in episode.turns)
    if isinstance(returned, RewardResult):
        if returned.turn_scores:
            per_turn(returned.turn_scores, turns, name)
        return returned
    if (number := as_number(returned)) is not None:
        return RewardResult(score=number)
    if (numbers := as_numbers(returned)) is not None:
        per_turn(numbers, turns, name)
        return RewardResult(score=math.fsum(numbers), turn_scores=numbers)
    text = on_one_line(repr(returned), longest=60) if isinstance(returned, str) else shown(returned)
    raise RewardError(
        f"reward {name} returned {text}. Return a number, a list with one for each turn of the agent, or a "
        "RewardResult, or raise Unscored for an episode that it cannot score"
    )


def checked_results(results: Sequence[Any], episodes: Sequence[Episode], name: str) -> list[RewardResult | Unscored]:
    """The results of a group. Raises `RewardError` if an episode has none, or if one is not a score."""
    if len(results) != len(episodes):
        raise RewardError(
            f"reward {name} returned {len(results)} scores for a group of {len(episodes)} episodes. Return one for "
            "each from compute_group"
        )
    checked = []
    for episode, result in zip(episodes, results, strict=True):
        with errors_at(f"sample {episode.context.sample}"):
            checked.append(as_result(result, episode, name))
    return checked


def check_columns(reward: RewardFunction, scenarios: Iterable[Scenario]) -> None:
    """Raise `RewardError` for the first scenario that lacks a column which the reward needs."""
    if reward.needed_columns:
        for scenario in scenarios:
            with errors_at(f"scenario {scenario.id}"):
                require_columns(f"reward {reward.name}", reward.needed_columns, scenario)


@contextmanager
def naming_columns(episode: Episode) -> Iterator[None]:
    """Add the scenario's columns to the error of a reward if it looked up a column that the scenario does not have."""
    scenario = episode.context.scenario
    try:
        yield
    except RewardError as error:
        cause = error.__cause__
        if (
            scenario is None
            or not isinstance(cause, KeyError)
            or cause.args[:1] == ()
            or cause.args[0] in columns(scenario)
        ):
            raise
        raise RewardError(f"{error}. {describe_columns(scenario)}") from error


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Put a place, such as the scenario, in front of the messages of errors that end the scoring."""
    try:
        yield
    except Unscored:
        raise
    except RewardError as error:
        raise RewardError(f"{place}: {error}") from error
    except TimeoutError as error:
        raise TimeoutError(f"{place}: {error}") from error
    except ConnectionError as error:
        raise ConnectionError(f"{place}: {error}") from error


def checked_weight(weight: float, name: str) -> float:
    """The weight itself. Warns if it is outside [0, 1], because it then inverts a reward or dominates the others."""
    if not 0 <= weight <= 1:
        warnings.warn(f"reward {name} has weight {weight}, outside [0, 1]", stacklevel=3)
    return weight
