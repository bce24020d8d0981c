"""From names to rewards: those of this package, and those of installed plugins."""

from __future__ import annotations

from collections.abc import Sequence
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
from grpo.rewards.text.lexical import ConcisenessReward, KeywordReward, VarietyReward
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
from grpo.rewards.text.similarity import SimilarityAwareReward

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
    """The class of the reward of this name, of this package or of a plugin; `ConfigError` where there is none."""
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
        return kind(weight=weight, **options)
    except TypeError as error:
        raise ConfigError(f"reward {name} does not take options {options}: {error}") from error


def make_reward(components: Sequence[RewardComponent]) -> CompositeReward:
    """The reward that the config asks for."""
    return CompositeReward(
        [reward_named(one.kind, weight=one.weight, **one.options) for one in components],
        optional=[one.kind for one in components if one.optional],
        floors={one.kind: one.floor for one in components if one.floor is not None},
    )
