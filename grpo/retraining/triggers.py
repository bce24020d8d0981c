"""Reasons to train again: each is checked, and says what it saw, whether it holds or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean, stdev
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from grpo.config.retraining import (
    AgeSettings,
    HeldoutRewardSettings,
    LiveRewardSettings,
    NewConversationsSettings,
    TopicDriftSettings,
    TriggerSettings,
)
from grpo.retraining.drift import compare_topics

_DAY_S = 86_400.0
_UNSERVED = "no version is in service"


class TriggerResult(BaseModel):
    """One reason, checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: str
    fired: bool
    numbers: dict[str, float]
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """The champion, as far as reasons ask for it."""

    name: str
    """Name and version, as the conversation log has it: `support-desk/3`."""
    registered: datetime
    heldout: float | None = None
    """Its mean on the held-out side when it was judged; None where no report says it."""
    reevaluated: tuple[float, float] | None = None
    """Mean on the same scenarios today, and its upper bound; None where it has not played them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerInputs:
    """What is known when the reasons are checked."""

    serving: ServedVersion | None
    """None while nothing is in service."""
    now: datetime
    new_conversations: int
    """Conversations that pass every gate and that came since the champion was trained and last judged against."""
    last_evaluated: datetime | None = None
    """When a retraining was last judged against what serves; None where none was."""
    known_topics: Sequence[str] = ()
    """What users said until then."""
    new_topics: Sequence[str] = ()
    """What users have said since."""
    live: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the champion's conversations were worth since, by each measure that the log has, oldest first."""
    seed: int = 0


class Trigger(Protocol):
    """One reason, with its settings."""

    def check(self, inputs: TriggerInputs) -> TriggerResult:
        """Look at the situation."""
        ...


def make_trigger(settings: TriggerSettings) -> Trigger:
    """The reason of these settings."""
    if isinstance(settings, NewConversationsSettings):
        return NewConversations(settings)
    if isinstance(settings, TopicDriftSettings):
        return TopicDrift(settings)
    if isinstance(settings, LiveRewardSettings):
        return LiveReward(settings)
    if isinstance(settings, HeldoutRewardSettings):
        return HeldoutReward(settings)
    return Age(settings)


def check_triggers(settings: Sequence[TriggerSettings], inputs: TriggerInputs) -> tuple[TriggerResult, ...]:
    """Every reason, in the order of the config; the first says whether anything is in service at all."""
    return (NoChampion().check(inputs), *(make_trigger(one).check(inputs) for one in settings))


class NoChampion:
    """Nothing is in service yet, so that there is nothing to keep."""

    def check(self, inputs: TriggerInputs) -> TriggerResult:
        """Holds until a first version is trained; if that one is refused, the other reasons say when to try again."""
        serving, last_evaluated = inputs.serving, inputs.last_evaluated
        explanation = _UNSERVED if serving is None else f"{serving.name} is in service"
        if serving is None and last_evaluated is not None:
            explanation = f"{_UNSERVED}; what was trained was judged on {last_evaluated:%Y-%m-%d}"
        return TriggerResult(
            reason="no_champion", fired=serving is None and last_evaluated is None, numbers={}, explanation=explanation
        )


class NewConversations:
    """There is enough to learn from."""

    def __init__(self, settings: NewConversationsSettings) -> None:
        self._minimum = settings.min_conversations

    def check(self, inputs: TriggerInputs) -> TriggerResult:
        """Counts those that passed every gate."""
        return TriggerResult(
            reason="new_conversations",
            fired=inputs.new_conversations >= self._minimum,
            numbers={"new": inputs.new_conversations, "minimum": self._minimum},
            explanation=f"{inputs.new_conversations} new conversations passed every gate, {self._minimum} are enough",
        )


class TopicDrift:
    """Users ask for other things."""

    def __init__(self, settings: TopicDriftSettings) -> None:
        self._settings = settings

    def check(self, inputs: TriggerInputs) -> TriggerResult:
        """Tests what users say now against the champion's data."""
        settings, known, new = self._settings, inputs.known_topics, inputs.new_topics
        numbers: dict[str, float] = {"known": len(known), "new": len(new), "level": settings.significance_level}
        if min(len(known), len(new)) < settings.min_conversations:
            explanation = (
                f"{len(new)} new conversations against {len(known)} in the champion's data, {settings.min_conversations} of each "
                "are needed to tell"
            )
            return TriggerResult(reason="topic_drift", fired=False, numbers=numbers, explanation=explanation)
        found = compare_topics(known, new, sample=settings.max_samples, seed=inputs.seed)
        fired = found.p <= settings.significance_level
        verb = "differ from" if fired else "do not tell apart from"
        words = f"; said more often now: {', '.join(found.words)}" if fired and found.words else ""
        return TriggerResult(
            reason="topic_drift",
            fired=fired,
            numbers={**numbers, "discrepancy": found.mmd, "p": found.p},
            explanation=f"what users say now {verb} the champion's data (p = {found.p:.3f}){words}",
        )


class LiveReward:
    """Users fare worse with the champion than before."""

    def __init__(self, settings: LiveRewardSettings) -> None:
        self._settings = settings

    def check(self, inputs: TriggerInputs) -> TriggerResult:
        """Compares the older half of its conversations with the newer one."""
        settings = self._settings
        values = list(inputs.live.get(settings.metric, ()))
        numbers: dict[str, float] = {
            "conversations": len(values),
            "drop": settings.drop,
            "level": settings.significance_level,
        }
        if len(values) < settings.min_conversations:
            explanation = f"{len(values)} conversations of the champion have a {settings.metric}, {settings.min_conversations} tell"
            return TriggerResult(reason="live_reward", fired=False, numbers=numbers, explanation=explanation)
        half = len(values) // 2
        before, after = values[:half], values[half:]
        means, p = (fmean(before), fmean(after)), _chance(before, after)
        return TriggerResult(
            reason="live_reward",
            fired=means[0] - means[1] >= settings.drop and p <= settings.significance_level,
            numbers={**numbers, "before": means[0], "after": means[1], "p": p},
            explanation=f"mean {settings.metric} of its users went from {means[0]:.3f} to {means[1]:.3f} (p = {p:.3f})",
        )


def _chance(before: Sequence[float], after: Sequence[float]) -> float:
    """How often chance alone makes the mean of `after` that much lower: Welch's one-sided test."""
    from scipy.stats import ttest_ind_from_stats

    spreads = stdev(before), stdev(after)
    if not any(spreads):  # two constants: nothing is left to chance
        return float(fmean(before) <= fmean(after))
    older, newer = (fmean(before), spreads[0], len(before)), (fmean(after), spreads[1], len(after))
    return float(ttest_ind_from_stats(*newer, *older, equal_var=False, alternative="less").pvalue)


class HeldoutReward:
    """The champion is worse on its held-out side than it was."""

    def __init__(self, settings: HeldoutRewardSettings) -> None:
        self._drop = settings.drop

    def check(self, inputs: TriggerInputs) -> TriggerResult:
        """Compares today's judgement with the one at its registration, until a retraining has answered it."""
        serving = inputs.serving
        if serving is not None and inputs.last_evaluated is not None:
            explanation = f"a retraining was judged against {serving.name} on {inputs.last_evaluated:%Y-%m-%d}"
            return TriggerResult(
                reason="heldout_reward", fired=False, numbers={"drop": self._drop}, explanation=explanation
            )
        if serving is None or serving.heldout is None or serving.reevaluated is None:
            explanation = _UNSERVED if serving is None else f"no report says how {serving.name} was judged"
            return TriggerResult(
                reason="heldout_reward", fired=False, numbers={"drop": self._drop}, explanation=explanation
            )
        mean, high = serving.reevaluated
        return TriggerResult(
            reason="heldout_reward",
            fired=high <= serving.heldout - self._drop,
            numbers={"registered": serving.heldout, "now": mean, "high": high, "drop": self._drop},
            explanation=f"its held-out mean was {serving.heldout:.3f} when registered, now {mean:.3f} (≤ {high:.3f})",
        )


class Age:
    """The champion is old."""

    def __init__(self, settings: AgeSettings) -> None:
        self._days = settings.days

    def check(self, inputs: TriggerInputs) -> TriggerResult:
        """Counts days since it was registered, or since a retraining was judged against it."""
        serving, last_evaluated = inputs.serving, inputs.last_evaluated
        begun = last_evaluated if last_evaluated is not None else serving.registered if serving is not None else None
        if begun is None:
            return TriggerResult(reason="age", fired=False, numbers={"limit": self._days}, explanation=_UNSERVED)
        days = (inputs.now - begun).total_seconds() / _DAY_S
        what = (
            "a retraining was last judged"
            if serving is None or last_evaluated is not None
            else f"{serving.name} was registered"
        )
        return TriggerResult(
            reason="age",
            fired=days >= self._days,
            numbers={"days": days, "limit": self._days},
            explanation=f"{what} {days:.1f} days ago, {self._days:g} are too many",
        )
