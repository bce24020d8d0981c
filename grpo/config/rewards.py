"""What an episode is worth."""

from __future__ import annotations

import math
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from grpo.config.base import Settings

REWARD_NAMES = (
    "task_completion", "checks", "valid_calls", "conciseness", "keywords", "variety", "constant",
    "helpfulness", "engagement", "correctness", "similarity", "similarity_aware",
    "customer_service", "technical_support", "sales", "education", "creative_writing",
    "empathy", "action", "professionalism", "ruler", "safety", "neural",
)  # fmt: skip
"""Rewards of this package."""
PLUGINS = "grpo.rewards"
"""Entry point group in which an installed package names its rewards."""


def plugin_names() -> set[str]:
    """Names of the rewards of installed packages; a reward of this package is not replaced."""
    return {point.name for point in entry_points(group=PLUGINS)} - {*REWARD_NAMES}


def plugin(name: str) -> EntryPoint | None:
    """The reward of an installed package with this name, not loaded yet; None where there is none."""
    if name in REWARD_NAMES:
        return None
    return next(iter(entry_points(group=PLUGINS, name=name)), None)


def _known(name: str) -> str:
    if name not in REWARD_NAMES and plugin(name) is None:
        raise ValueError(f"reward {name} is unknown; known are {', '.join(sorted({*REWARD_NAMES, *plugin_names()}))}")
    return name


def _finite(value: Any, place: str = "options") -> Any:
    """The value, if no number in it is infinite or NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {value}; write a finite number")
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        _finite(part, f"{place}.{name}")
    return value


RewardName = Annotated[str, AfterValidator(_known)]


class RewardComponent(Settings):
    """One reward and what it counts for."""

    kind: RewardName
    """A reward of this package, or of a plugin."""
    weight: float = Field(ge=-1, le=1)
    """Share in the total; negative turns the reward round."""
    options: Annotated[dict[str, Any], AfterValidator(_finite)] = Field(default_factory=dict)
    """Settings of this reward, by name."""
    optional: bool = False
    """Whether an episode that this reward cannot judge still counts, without it; else it gets no reward."""
    floor: float | None = None
    """Below it the episode gets the least score, whatever the other rewards say."""
    accepted_exploits: tuple[str, ...] = ()
    """Probes that are known to fool this reward; by any other one the run refuses it. `grpo check-reward` shows them."""
