"""Health checks of a training while it runs: each issue has its value and the threshold that it crossed.

They judge only the last iteration, so their bounds are wider than in `grpo.diagnosis`, which explains a finished run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from grpo.config.base import Settings
from grpo.diagnosis.evidence import SOLVED
from grpo.diagnosis.exploration_checks import COLLAPSED
from grpo.diagnosis.reward_checks import HACKED
from grpo.evaluation.schema import Interval
from grpo.learner.metrics import UpdateMetrics
from grpo.rewards.rollout_summary import RolloutSummary

HealthIssue = Literal[
    "non_finite",
    "kl_spike",
    "entropy_collapse",
    "uninformative_groups",
    "truncation",
    "failures",
    "reward_hacking",
    "input_agnostic",
]


class DiagnosticsSettings(Settings):
    """Thresholds of the health checks."""

    kl_factor: float = 5.0
    """A KL to the base of this many times the median of the preceding window is a spike …"""
    kl_floor: float = 0.05
    """… if it is also above this many nats per token."""
    entropy_share: float = COLLAPSED
    """Entropy below this share of the first iteration's has collapsed."""
    informative_share: float = 0.05
    """Too few groups are informative below this share of them …"""
    solved: float = SOLVED
    """… unless verified success is at least this high: the scenarios are solved."""
    truncated_share: float = 0.3
    failed_share: float = 0.05
    window: int = 5
    """Iterations of a trend."""
    hacking_drop: float = HACKED
    """A rising reward with verified success falling by this much over the window is reward hacking."""


class IterationRecord(BaseModel):
    """Rollout summary and update metrics of one iteration."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    index: int
    rollout: RolloutSummary
    update: UpdateMetrics
    reward_interval: Interval | None = None
    """Mean reward over the scenarios with its 95 % interval, or None if no episode has a reward."""
    success_interval: Interval | None = None
    """Verified success over the scenarios with its 95 % interval, or None if no outcome is verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthStatus:
    """Health of a training, with the reasons."""

    status: Literal["healthy", "unhealthy", "unknown"]
    """Unknown before the first iteration."""
    reasons: dict[HealthIssue, str] = field(default_factory=dict)
    """Message of each issue."""


class DiagnosticsMonitor:
    """Monitor of the iterations of a training, with its health status after the last one."""

    def __init__(self, settings: DiagnosticsSettings | None = None) -> None:
        self.settings = settings or DiagnosticsSettings()
        self.records: list[IterationRecord] = []

    def observe(self, record: IterationRecord) -> HealthStatus:
        """Add an iteration. Returns the health status after it."""
        self.records.append(record)
        return self.get_health_status()

    def get_health_status(self) -> HealthStatus:
        """Health status after the last iteration."""
        if not self.records:
            return HealthStatus(status="unknown")
        reasons = {issue: reason for issue, check in _CHECKS.items() if (reason := check(self.records, self.settings))}
        return HealthStatus(status="unhealthy" if reasons else "healthy", reasons=reasons)


def _non_finite(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    update, rollout = records[-1].update, records[-1].rollout
    metrics = {
        "loss": update.loss,
        "gradient_norm": update.gradient_norm,
        "kl_to_base": update.kl_to_base,
        "entropy": update.entropy,
        "reward": rollout.reward,
    }
    non_finite = [
        f"{name} is {value}" for name, value in metrics.items() if value is not None and not math.isfinite(value)
    ]
    return ", ".join(non_finite) or None


def _kl_spike(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    current = records[-1].update.kl_to_base
    before = [record.update.kl_to_base for record in records[-1 - settings.window : -1]]
    usual = median(before) if before else 0.0
    if before and current > settings.kl_floor and current > settings.kl_factor * usual:
        return f"KL to the base is {current:.3g} nats per token, its median before is {usual:.3g}"
    return None


def _entropy_collapse(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    first, current = records[0].update.entropy, records[-1].update.entropy
    if current < settings.entropy_share * first:
        return f"entropy is {current:.3g} nats per token, in the first iteration {first:.3g}"
    return None


def _uninformative_groups(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    rollout = records[-1].rollout
    if records[-1].update.teacher_kl is not None:  # a teacher gives equal rewards a gradient
        return None
    share = rollout.informative_groups / max(1, rollout.groups)
    if share >= settings.informative_share or (rollout.success or 0.0) >= settings.solved:
        return None
    return f"{rollout.informative_groups} of {rollout.groups} groups have rewards that differ: too few for a gradient"


def _truncation(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    share = records[-1].rollout.truncated_share
    return f"{share:.0%} of the episodes were truncated" if share > settings.truncated_share else None


def _failures(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    share = records[-1].rollout.failed_share
    return f"{share:.0%} of the episodes failed" if share > settings.failed_share else None


def _reward_hacking(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    """Two consecutive windows: the mean reward rose, and the mean verified success fell."""
    size = settings.window
    pairs = [(r.rollout.reward, r.rollout.success) for r in records]
    known = [(reward, success) for reward, success in pairs if reward is not None and success is not None]
    if len(known) < 2 * size:
        return None
    before, after = known[-2 * size : -size], known[-size:]
    rise = fmean(reward for reward, _ in after) - fmean(reward for reward, _ in before)
    fall = fmean(success for _, success in before) - fmean(success for _, success in after)
    if rise > 0 and fall >= settings.hacking_drop:
        return f"over {size} iterations the reward rose by {rise:.3g} while verified success fell by {fall:.3g}"
    return None


def _input_agnostic(records: Sequence[IterationRecord], settings: DiagnosticsSettings) -> str | None:
    rollout, entropy = records[-1].rollout, records[-1].update.entropy
    if not rollout.input_agnostic:
        return None
    return (
        f"the replies do not depend on the scenario: mutual information {rollout.mutual_information or 0:.3f} nats per "
        f"token, as in shuffled replies, at entropy {entropy:.3g}"
    )


_CHECKS: dict[HealthIssue, Callable[[Sequence[IterationRecord], DiagnosticsSettings], str | None]] = {
    "non_finite": _non_finite,
    "kl_spike": _kl_spike,
    "entropy_collapse": _entropy_collapse,
    "uninformative_groups": _uninformative_groups,
    "truncation": _truncation,
    "failures": _failures,
    "reward_hacking": _reward_hacking,
    "input_agnostic": _input_agnostic,
}
