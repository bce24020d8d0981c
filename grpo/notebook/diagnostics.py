"""Whether a training run is well: each reason is a number, where it was seen, and what it is held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

from grpo.config.base import Settings
from grpo.rewards.rollout_summary import RolloutSummary

if TYPE_CHECKING:
    from grpo.learner.update import UpdateMetrics

HealthIssue = Literal[
    "not_a_number", "kl_spike", "entropy_collapse", "dead_groups", "truncation", "failures", "hacking"
]


class DiagnosticsSettings(Settings):
    """What counts as unwell."""

    kl_factor: float = 5.0
    """A KL to the base this many times the median of the window before is a spike …"""
    kl_floor: float = 0.05
    """… above this many nats a token."""
    entropy_share: float = 0.1
    """Entropy below this share of the first iteration's has collapsed."""
    informative_share: float = 0.05
    """Groups are dead when fewer than this share of them have siblings that differ …"""
    solved: float = 0.9
    """… unless this share of what can be verified succeeds: then there is nothing left to learn."""
    truncated_share: float = 0.3
    failed_share: float = 0.05
    window: int = 5
    """Iterations over which a trend is judged."""
    hacking_fall: float = 0.05
    """A reward that rises while verified success falls by this much over the window is hacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecord:
    """What one iteration showed."""

    index: int
    rollout: RolloutSummary
    update: UpdateMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthStatus:
    """How a run is."""

    status: Literal["healthy", "unhealthy", "unknown"]
    """Unknown until an iteration was seen."""
    reasons: dict[HealthIssue, str] = field(default_factory=dict)
    """What is wrong, in words."""


class DiagnosticsMonitor:
    """Sees each iteration, and says how the run is by the last of them."""

    def __init__(self, settings: DiagnosticsSettings | None = None) -> None:
        self.settings = settings or DiagnosticsSettings()
        self.records: list[IterationRecord] = []

    def observe(self, record: IterationRecord) -> HealthStatus:
        """Take an iteration in; returns how the run is now."""
        self.records.append(record)
        return self.get_health_status()

    def get_health_status(self) -> HealthStatus:
        """How the run is, by its last iteration and the ones before."""
        if not self.records:
            return HealthStatus(status="unknown")
        found = {name: reason for name, look in _LOOKS.items() if (reason := look(self.records, self.settings))}
        return HealthStatus(status="unhealthy" if found else "healthy", reasons=found)


def _not_a_number(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    update, rollout = records[-1].update, records[-1].rollout
    numbers = {
        "loss": update.loss,
        "gradient_norm": update.gradient_norm,
        "kl_to_base": update.kl_to_base,
        "entropy": update.entropy,
        "reward": rollout.reward if rollout.reward is not None else 0.0,
    }
    wrong = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    return ", ".join(wrong) or None


def _kl_spike(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    now = records[-1].update.kl_to_base
    before = [record.update.kl_to_base for record in records[-1 - settings.window : -1]]
    usual = median(before) if before else 0.0
    if before and now > settings.kl_floor and now > settings.kl_factor * usual:
        return f"KL to the base is {now:.3g} nats a token, usual are {usual:.3g}"
    return None


def _entropy_collapse(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    first, now = records[0].update.entropy, records[-1].update.entropy
    if now < settings.entropy_share * first:
        return f"entropy is {now:.3g} nats a token, it was {first:.3g}"
    return None


def _dead_groups(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    rollout = records[-1].rollout
    share = rollout.informative_groups / max(1, rollout.groups)
    if share >= settings.informative_share or (rollout.success or 0.0) >= settings.solved:
        return None
    return f"siblings differ in {rollout.informative_groups} of {rollout.groups} groups: there is nothing to learn from"


def _truncation(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    share = records[-1].rollout.truncated_share
    return f"{share:.0%} of the episodes were cut off" if share > settings.truncated_share else None


def _failures(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    share = records[-1].rollout.failed_share
    return f"{share:.0%} of the episodes failed" if share > settings.failed_share else None


def _hacking(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    """Two windows next to each other: the reward's mean rose, that of verified success fell."""
    size = settings.window
    pairs = [(r.rollout.reward, r.rollout.success) for r in records]
    known = [(reward, success) for reward, success in pairs if reward is not None and success is not None]
    if len(known) < 2 * size:
        return None
    before, after = known[-2 * size : -size], known[-size:]
    rise = fmean(reward for reward, _ in after) - fmean(reward for reward, _ in before)
    fall = fmean(success for _, success in before) - fmean(success for _, success in after)
    if rise > 0 and fall >= settings.hacking_fall:
        return f"over {size} iterations the reward rose by {rise:.3g} while verified success fell by {fall:.3g}"
    return None


_LOOKS: dict[HealthIssue, Callable[[Sequence[IterationRecord], DiagnosticsSettings], str | None]] = {
    "not_a_number": _not_a_number,
    "kl_spike": _kl_spike,
    "entropy_collapse": _entropy_collapse,
    "dead_groups": _dead_groups,
    "truncation": _truncation,
    "failures": _failures,
    "hacking": _hacking,
}
