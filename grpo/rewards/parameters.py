"""Parameters of a reward function of the user's own: the turns, the context of the episode, columns of its scenario."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.errors import ConfigError
from grpo.scenario import Scenario
from grpo.scenarios.columns import columns, require_columns

_CONTEXT = ("context", "ctx")
_TRL = frozenset({"prompts", "completions", "completion_ids"})
"""Arguments of TRL's reward functions, which are called once for a group."""
_LAST = "next(turn.content for turn in reversed(turns) if turn.role == 'assistant')"
_WRAPPERS = {
    "verl's compute_score": (
        ("data_source", "solution_str"),
        {"solution_str", "ground_truth"},
        f"def reward(turns, ground_truth): return compute_score('', {_LAST}, ground_truth)",
    ),
    "OpenRLHF's reward_func": (
        ("queries",),
        {"queries", "labels"},
        f"def reward(turns, label): return float(reward_func([{_LAST}], [turns[0].content], [label])[0])",
    ),
    "the rewards of verifiers' rubrics": (
        ("prompt", "completion"),
        {"completion", "answer"},
        f"def reward(turns, answer): return rubric_reward(completion={_LAST}, answer=answer)",
    ),
}
"""Contracts of other libraries: names of the first argument, the arguments that tell the contract, and a function that
calls it with columns of a scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of a function after the turns, which are its first argument.

    def f(turns, context)                            the context, also as `ctx`, `_`, or of type RewardContext
    def f(turns, answer, level=1, **columns)         columns: `answer` is needed, `level` optional, all others
    """

    turns: str = ""
    """Name of the parameter for the turns, or empty if there is none."""
    context: str = ""
    """Name of the parameter for the context, or empty if there is none."""
    by_position: bool = False
    """The context has no name that it could be given by."""
    needed: tuple[str, ...] = ()
    """Columns without a default."""
    optional: tuple[str, ...] = ()
    rest: bool = False
    """All other columns are taken by `**`."""

    @classmethod
    def of(cls, function: Callable[..., Any], name: str) -> Parameters:
        """Parameters of a function. Raises `ConfigError` for one of TRL's contract."""
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except ValueError:  # some builtins have no signature
            return cls()
        refuse_other_contract(parameters, name)
        if taken := _TRL & {parameter.name for parameter in parameters}:
            raise ConfigError(
                f"reward {name} takes {', '.join(sorted(taken))}, as functions of TRL do. Set kind: trl in a config, "
                "pass the function itself to a trainer, or take the turns of one conversation"
            )
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = [*positional[1:], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
        context = next((p for p in named if _is_context(p)), None)
        variadic = context is None and any(p.kind is p.VAR_POSITIONAL for p in parameters)
        others = [p for p in named if p is not context]
        return cls(
            turns=next((p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD), ""),
            context="" if context is None else context.name,
            by_position=variadic or (context is not None and context.kind is context.POSITIONAL_ONLY),
            needed=tuple(p.name for p in others if p.default is p.empty),
            optional=tuple(p.name for p in others if p.default is not p.empty),
            rest=any(p.kind is p.VAR_KEYWORD for p in parameters),
        )

    def arguments(self, context: Any, scenario: Scenario | None, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments after the turns, by position and by name. Raises `RewardError` for a column that is missing."""
        if self.needed:
            require_columns(what, self.needed, scenario)
        given: Mapping[str, Any] = {} if scenario is None else columns(scenario)
        wanted = given.keys() if self.rest else given.keys() & {*self.needed, *self.optional}
        named = {name: given[name] for name in wanted if name not in (self.turns, self.context)}
        if self.by_position:
            return (context,), named
        return (), {**named, **({self.context: context} if self.context else {})}


def is_of_trl(function: Callable[..., Any]) -> bool:
    """Return True for a function of prompts and completions, as TRL's reward functions are."""
    try:
        return bool(_TRL & inspect.signature(function).parameters.keys())
    except ValueError:  # some builtins have no signature
        return False


def refuse_other_contract(parameters: Sequence[inspect.Parameter], reward: str) -> None:
    """Raise `ConfigError` with the function to write if another library's rewards have these parameters.

    The arguments completion and answer may also be the turns and a column, unless the completion is annotated as text.
    """
    names = [parameter.name for parameter in parameters]
    for contract, (firsts, arguments, wrapper) in _WRAPPERS.items():
        may_be_turns = "completion" in arguments and not any(
            parameter.name == "completion" and parameter.annotation in (str, "str") for parameter in parameters
        )
        if arguments <= {*names} and names[0] in firsts and not may_be_turns:
            raise ConfigError(
                f"reward {reward} takes {', '.join(sorted(arguments))}, as {contract} does. Set kind: python and name "
                f"a function that calls it, such as: {wrapper}"
            )


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation if isinstance(parameter.annotation, str) else repr(parameter.annotation)
    return parameter.name in _CONTEXT or parameter.name.startswith("_") or "RewardContext" in annotation
