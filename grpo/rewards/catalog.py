"""Rewards by name, from this package, from installed plugins, and from the user's own code."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo.config.loading import describe_errors
from grpo.config.rewards import PYTHON, TRL, RewardComponent
from grpo.errors import ConfigError
from grpo.rewards.composite import CompositeReward
from grpo.rewards.judge.ruler import RulerReward
from grpo.rewards.learned.neural import NeuralReward
from grpo.rewards.learned.safety import SafetyReward
from grpo.rewards.reward import FunctionReward, RewardFunction, checked_weight
from grpo.rewards.task import ChecksReward, ConstantReward, EnvironmentReward, TaskCompletionReward, ValidCallsReward
from grpo.rewards.text.correctness import CorrectnessReward, SimilarityReward
from grpo.rewards.text.lexical import ConcisenessReward, KeywordReward, SimilarityAwareReward, VarietyReward
from grpo.rewards.text.quality import (
    ActionReward,
    CreativeWritingReward,
    CustomerServiceReward,
    EducationReward,
    EmpathyReward,
    EngagementReward,
    HelpfulnessReward,
    ProfessionalismReward,
    SalesAssistantReward,
    TechnicalSupportReward,
)
from grpo.rewards.trl import TRLReward
from grpo.user_objects import load_object, make_object

REWARDS: dict[str, type[RewardFunction]] = {
    reward.name: reward
    for reward in (
        TaskCompletionReward,
        ChecksReward,
        EnvironmentReward,
        ValidCallsReward,
        ConcisenessReward,
        KeywordReward,
        VarietyReward,
        ConstantReward,
        HelpfulnessReward,
        EngagementReward,
        CorrectnessReward,
        SimilarityReward,
        SimilarityAwareReward,
        CustomerServiceReward,
        TechnicalSupportReward,
        SalesAssistantReward,
        EducationReward,
        CreativeWritingReward,
        EmpathyReward,
        ActionReward,
        ProfessionalismReward,
        RulerReward,
        SafetyReward,
        NeuralReward,
    )
}


def make_named_reward(name: str, *, weight: float = 1.0, **options: Any) -> RewardFunction:
    """Make the reward of this name, of this package or of a plugin, or the user's own `module:name`.

    Raises `ConfigError` for unknown names and options.
    """
    named = {"kind": PYTHON, "object": name} if ":" in name else {"kind": name}
    try:
        component = RewardComponent.model_validate({**named, "weight": 1.0, "options": options})
    except ValidationError as error:
        raise ConfigError("; ".join(describe_errors(error, RewardComponent, named))) from error
    reward = make_reward(component)
    reward.weight = checked_weight(weight, reward.name)
    return reward


def make_composite_reward(components: Sequence[RewardComponent]) -> CompositeReward:
    """Make the reward of a config, which combines the scores of all its components."""
    rewards = [make_reward(part) for part in components]
    named = list(zip(components, (reward.name for reward in rewards), strict=True))
    return CompositeReward(
        rewards,
        optional=[name for part, name in named if part.optional],
        floors={name: part.floor for part, name in named if part.floor is not None},
    )


def make_reward(component: RewardComponent) -> RewardFunction:
    """Make one reward of a config. Raises `ConfigError` for options that it does not take."""
    options, reference = component.options, component.reference
    if reference is not None and component.kind == TRL:
        reward: RewardFunction = TRLReward(reference, options)
        reward.weight = component.weight
        return reward
    if reference is not None:
        target = load_object(reference)
        if isinstance(target, type):
            reward = make_object(reference, options, RewardFunction)  # type: ignore[type-abstract]
        elif options:
            raise ConfigError(f"{reference} takes no options {options}. Write a subclass of RewardFunction that does")
        else:
            reward = copy.copy(target) if isinstance(target, RewardFunction) else _of_function(reference, target)
        reward.weight = component.weight
        return reward
    kind = REWARDS[component.kind]
    try:
        return kind(weight=component.weight, **(_with_fallback(options) if kind is RulerReward else options))
    except TypeError as error:
        raise ConfigError(f"reward {component.kind} does not take options {options}: {error}") from error


def reward_files(component: RewardComponent) -> Sequence[str | Path]:
    """Files that a reward of a config declares, see `RewardFunction.files`."""
    target = REWARDS[component.kind] if component.reference is None else load_object(component.reference)
    return target.files(component.options) if isinstance(target, type) and issubclass(target, RewardFunction) else ()


def _of_function(reference: str, function: object) -> FunctionReward:
    if not callable(function):
        raise ConfigError(
            f"{reference} is {type(function).__name__}. Name a RewardFunction or a function of (turns, context)"
        )
    return FunctionReward(function)


def _with_fallback(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of the judge with the reward that its `fallback` names."""
    name = options.get("fallback")
    if not isinstance(name, str):
        return options
    others = [other for other in REWARDS if other != RulerReward.name]
    if name not in others:
        raise ConfigError(
            f"fallback {name!r} of reward ruler is unknown or ruler itself. Use one of {', '.join(others)}"
        )
    try:
        return {**options, "fallback": REWARDS[name]()}
    except TypeError as error:
        raise ConfigError(f"fallback {name!r} of reward ruler needs options: {error}") from error
