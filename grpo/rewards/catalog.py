"""Rewards by name: those of this package, and those of installed plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.config.rewards import RewardComponent, plugin, plugin_names
from grpo.errors import ConfigError
from grpo.rewards.composite import CompositeReward
from grpo.rewards.judge.ruler import RulerReward
from grpo.rewards.learned.neural import NeuralReward
from grpo.rewards.learned.safety import SafetyReward
from grpo.rewards.reward import RewardFunction
from grpo.rewards.task import ChecksReward, ConstantReward, TaskCompletionReward, ValidCallsReward
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

REWARDS: dict[str, type[RewardFunction]] = {
    reward.name: reward
    for reward in (
        TaskCompletionReward,
        ChecksReward,
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


def reward_type(name: str) -> type[RewardFunction]:
    """Class of the reward of this name, of this package or of a plugin; `ConfigError` for an unknown name."""
    if name in REWARDS:
        return REWARDS[name]
    point = plugin(name)
    if point is None:
        raise ConfigError(f"reward {name!r} is unknown; known are {', '.join(sorted({*REWARDS, *plugin_names()}))}")
    kind = point.load()
    if not (isinstance(kind, type) and issubclass(kind, RewardFunction)):
        raise ConfigError(f"plugin {point.value} of reward {name} is not a RewardFunction; name a subclass of it")
    return kind


def reward_named(name: str, *, weight: float = 1.0, **options: Any) -> RewardFunction:
    """The reward of this name, of this package or of a plugin; `ConfigError` for unknown names and options."""
    kind = reward_type(name)
    try:
        return kind(weight=weight, **(_with_fallback(options) if kind is RulerReward else options))
    except TypeError as error:
        raise ConfigError(f"reward {name} does not take options {options}: {error}") from error


def make_reward(components: Sequence[RewardComponent]) -> CompositeReward:
    """The reward that the config asks for."""
    return CompositeReward(
        [reward_named(part.kind, weight=part.weight, **part.options) for part in components],
        optional=[part.kind for part in components if part.optional],
        floors={part.kind: part.floor for part in components if part.floor is not None},
    )


def _with_fallback(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of the judge with the reward that its `fallback` names."""
    name = options.get("fallback")
    if not isinstance(name, str):
        return options
    others = [other for other in REWARDS if other != RulerReward.name]
    if name not in others:
        raise ConfigError(
            f"fallback {name!r} of reward ruler is unknown or ruler itself; use one of {', '.join(others)}"
        )
    try:
        return {**options, "fallback": REWARDS[name]()}
    except TypeError as error:
        raise ConfigError(f"fallback {name!r} of reward ruler needs options: {error}") from error
