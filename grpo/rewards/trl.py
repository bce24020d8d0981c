"""Adapter of reward functions in the form of TRL's `reward_funcs`.

    def accuracy(completions, answer, **kwargs) -> list[float | None]:

The function is called once for the group of a scenario, as TRL 1.16 calls it, with lists of one entry per episode:

    prompts           messages before the agent's first turn, `{"role", "content"}`
    completions       messages from that turn on, including results of tools
    completion_ids    their token ids
    environments      instances of a class of kind trl, with the attributes that they had at the end of the episode
    a column          each field of the scenario, of its metadata and of its `world`
    log_metric, log_extra    functions; both are kept in the metadata of the scores

None, as in TRL, leaves this component out of that episode's sum (there by `nansum`). NaN is an error. Episodes that
failed are not in the group. `trainer_state` is refused, because no trainer exists when rewards are computed, and the
same reward must compare champion and candidate.

https://huggingface.co/docs/trl/grpo_trainer#using-a-custom-reward-function
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from itertools import islice
from typing import Any

from grpo.errors import ConfigError, NotApplicable, RewardError, Unscored
from grpo.messages import Message
from grpo.object_state import load_state
from grpo.rewards.parameters import refuse_other_contract
from grpo.rewards.reward import Episode, GroupReward, RewardResult, errors_at, naming_columns
from grpo.scenarios.columns import accepted, columns, require_columns
from grpo.user_failures import shown, user_code
from grpo.user_numbers import as_number
from grpo.user_objects import bind

_PASSED = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass."""
_ARGUMENTS = frozenset(
    {"prompts", "completions", "completion_ids", "environments", "log_metric", "log_extra", "trainer_state"}
)
"""Arguments of TRL's contract that are not columns."""


class TRLReward(GroupReward):
    """Scores a group with a function of prompts, completions and columns, or with the one that `module:name` names.

    The reward hacking check probes it only if the function has an attribute `probed` that is true, because most of
    TRL's rewards look for one form or one answer, and the check's honest replies do not have these.
    """

    def __init__(
        self, function: str | Callable[..., Any], options: Mapping[str, Any] | None = None, *, weight: float = 1.0
    ) -> None:
        self._function = bind(function, options or {}, columns=True) if isinstance(function, str) else function
        self._bound = frozenset(self._function.keywords if isinstance(self._function, functools.partial) else ())
        inner = self._function.func if isinstance(self._function, functools.partial) else self._function
        self.name = getattr(inner, "__name__", type(inner).__name__)
        super().__init__(weight=weight)
        self.probed = bool(getattr(inner, "probed", False))  # type: ignore[misc]
        self._place = f"{function if isinstance(function, str) else self.name} ({_file(inner)})"
        parameters = inspect.signature(self._function).parameters
        refuse_other_contract([p for name, p in parameters.items() if name not in self._bound], self._place)
        self.needed_columns = [
            name
            for name, p in parameters.items()
            if p.default is p.empty
            and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            and name not in _ARGUMENTS | self._bound
        ]
        if "turns" in self.needed_columns and not _ARGUMENTS & parameters.keys():
            raise ConfigError(f"{self._place} takes turns, as functions of this package do. Set kind: python")
        state = parameters.get("trainer_state")
        if state is not None and state.default is state.empty:
            raise ConfigError(
                f"{self._place} needs trainer_state, which does not exist when rewards are computed. Give it a "
                "default, or write the schedule as several configs"
            )

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Call the function with the group. Raises `RewardError` for an exception and for another result."""
        notes = _Notes(len(episodes))
        arguments = {**_arguments(episodes), "log_metric": notes.log_metric, "log_extra": notes.log_extra}
        unbound = {name: value for name, value in arguments.items() if name not in self._bound}
        if self.needed_columns:
            require_columns(self._place, self.needed_columns, episodes[0].context.scenario)
        failures = user_code("", remedy="Correct it", error=RewardError, transient=True)
        with errors_at(self._place), naming_columns(episodes[0]), failures:
            returned: Any = self._function(**accepted(self._function, unbound))
            group_scores = await returned if inspect.isawaitable(returned) else returned
            scores = list(islice(group_scores, len(episodes) + 1)) if _is_ordered(group_scores) else None
        if scores is None:
            raise RewardError(
                f"{self._place} returned {shown(group_scores)} for {len(episodes)} completions. Return a list with "
                "one number for each, None if it does not apply"
            )
        if len(scores) != len(episodes):
            count = _count(group_scores, scores, len(episodes))
            raise RewardError(
                f"{self._place} returned {count} rewards for {len(episodes)} completions. Return a list with one for "
                "each, None if it does not apply"
            )
        return [self._result(score, notes.of(index)) for index, score in enumerate(scores)]

    def _result(self, score: Any, metadata: Mapping[str, Any]) -> RewardResult | Unscored:
        if score is None:
            return NotApplicable(f"{self.name} does not apply")
        number = as_number(score)
        if number is None or not math.isfinite(number):
            raise RewardError(
                f"{self._place} returned {shown(score)} for a completion. Return a finite number, or None where it "
                "does not apply"
            )
        return RewardResult(score=number, metadata=metadata)


def _is_ordered(scores: Any) -> bool:
    """True if the scores can be read one after the other, as TRL reads a list, an array or a generator.

    A set forgets equal scores, and a text or a dict has no scores.
    """
    return isinstance(scores, Iterable) and not isinstance(scores, (str, bytes, Mapping, Set))


def _count(returned: Any, read: Sequence[Any], wanted: int) -> str:
    """Number of scores that a function returned. A generator may be endless, so at most one score too many is read."""
    if isinstance(returned, Sized):
        return str(len(returned))
    return f"more than {wanted}" if len(read) > wanted else str(len(read))


class _Notes:
    """Metrics and columns that a function logs."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._metrics: dict[str, float] = {}
        self._extra: dict[str, list[Any]] = {}

    def log_metric(self, name: str, value: float) -> None:
        """Keep a number of the group."""
        self._metrics[name] = float(value)

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Keep one value for each completion."""
        if len(values) != self._count:
            raise ValueError(f"log_extra {column!r} got {len(values)} values for {self._count} completions")
        self._extra[column] = [value if isinstance(value, str | float | None) else str(value) for value in values]

    def of(self, index: int) -> dict[str, Any]:
        extra = {name: values[index] for name, values in self._extra.items()}
        return {**({"metrics": self._metrics} if self._metrics else {}), **({"extra": extra} if extra else {})}


def _arguments(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Arguments of TRL's contract, each a list with one entry an episode."""
    parts = [_split(episode.turns) for episode in episodes]
    rows = [columns(episode.context.scenario) if episode.context.scenario else {} for episode in episodes]
    arguments: dict[str, Any] = {name: [row.get(name) for row in rows] for name in rows[0] if name not in _PASSED}
    arguments |= {
        "prompts": [prompt for prompt, _ in parts],
        "completions": [completion for _, completion in parts],
        "completion_ids": [list(episode.context.completion_ids) for episode in episodes],
    }
    states = [_state(episode) for episode in episodes]
    if all(state is not None for state in states):
        arguments["environments"] = [load_state(state) for state in states if state is not None]
    return arguments


def _split(turns: Sequence[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages before the agent's first turn, and from it on."""
    first = next((index for index, turn in enumerate(turns) if turn.role == "assistant"), len(turns))
    messages = [turn.to_template() for turn in turns]
    return messages[:first], messages[first:]


def _state(episode: Episode) -> Mapping[str, Any] | None:
    """Saved state of an instance of the user's environment, or None."""
    state = {} if episode.context.outcome is None else episode.context.outcome.state
    return state if state.keys() == {"class", "attributes", "unsaved"} else None


def _file(function: Callable[..., Any]) -> str:
    target = function if inspect.isfunction(function) else type(function)
    try:
        return inspect.getsourcefile(target) or target.__module__
    except TypeError:
        return target.__module__
