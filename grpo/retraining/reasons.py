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
    ReasonSettings,
    TopicDriftSettings,
)
from grpo.retraining.drift import compare_topics

_DAY_S = 86_400.0
_UNSERVED = "no version is in service"


class Finding(BaseModel):
    """One reason, checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: str
    holds: bool
    numbers: dict[str, float]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The champion, as far as reasons ask for it."""

    name: str
    """Name and version, as the conversation log has it: `support-desk/3`."""
    registered: datetime
    heldout: float | None = None
    """Its mean on the held-out side when it was judged; None where no report says it."""
    judged_again: tuple[float, float] | None = None
    """Mean on the same scenarios today, and its upper bound; None where it has not played them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known when the reasons are checked."""

    serving: Serving | None
    """None while nothing is in service."""
    now: datetime
    fresh: int
    """Conversations that pass every gate and that came since the champion was trained and last judged against."""
    judged: datetime | None = None
    """When a retraining was last judged against what serves; None where none was."""
    known_topics: Sequence[str] = ()
    """What users said until then."""
    new_topics: Sequence[str] = ()
    """What users have said since."""
    live: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the champion's conversations were worth since, by each measure that the log has, oldest first."""
    seed: int = 0


class Reason(Protocol):
    """One reason, with its settings."""

    def check(self, situation: Situation) -> Finding:
        """Look at the situation."""
        ...


def make_reason(settings: ReasonSettings) -> Reason:
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


def check_all(settings: Sequence[ReasonSettings], situation: Situation) -> tuple[Finding, ...]:
    """Every reason, in the order of the config; the first says whether anything is in service at all."""
    return (NoChampion().check(situation), *(make_reason(one).check(situation) for one in settings))


class NoChampion:
    """Nothing is in service yet, so that there is nothing to keep."""

    def check(self, situation: Situation) -> Finding:
        """Holds until a first version is trained; if that one is refused, the other reasons say when to try again."""
        serving, judged = situation.serving, situation.judged
        sentence = _UNSERVED if serving is None else f"{serving.name} is in service"
        if serving is None and judged is not None:
            sentence = f"{_UNSERVED}; what was trained was judged on {judged:%Y-%m-%d}"
        return Finding(reason="no_champion", holds=serving is None and judged is None, numbers={}, sentence=sentence)


class NewConversations:
    """There is enough to learn from."""

    def __init__(self, settings: NewConversationsSettings) -> None:
        self._minimum = settings.minimum

    def check(self, situation: Situation) -> Finding:
        """Counts those that passed every gate."""
        return Finding(
            reason="new_conversations",
            holds=situation.fresh >= self._minimum,
            numbers={"new": situation.fresh, "minimum": self._minimum},
            sentence=f"{situation.fresh} new conversations passed every gate, {self._minimum} are enough",
        )


class TopicDrift:
    """Users ask for other things."""

    def __init__(self, settings: TopicDriftSettings) -> None:
        self._settings = settings

    def check(self, situation: Situation) -> Finding:
        """Tests what users say now against the champion's data."""
        settings, known, new = self._settings, situation.known_topics, situation.new_topics
        numbers: dict[str, float] = {"known": len(known), "new": len(new), "level": settings.level}
        if min(len(known), len(new)) < settings.minimum:
            sentence = (
                f"{len(new)} new conversations against {len(known)} in the champion's data, {settings.minimum} of each "
                "are needed to tell"
            )
            return Finding(reason="topic_drift", holds=False, numbers=numbers, sentence=sentence)
        found = compare_topics(known, new, sample=settings.sample, seed=situation.seed)
        holds = found.p <= settings.level
        verb = "differ from" if holds else "do not tell apart from"
        words = f"; said more often now: {', '.join(found.words)}" if holds and found.words else ""
        return Finding(
            reason="topic_drift",
            holds=holds,
            numbers={**numbers, "discrepancy": found.discrepancy, "p": found.p},
            sentence=f"what users say now {verb} the champion's data (p = {found.p:.3f}){words}",
        )


class LiveReward:
    """Users fare worse with the champion than before."""

    def __init__(self, settings: LiveRewardSettings) -> None:
        self._settings = settings

    def check(self, situation: Situation) -> Finding:
        """Compares the older half of its conversations with the newer one."""
        settings = self._settings
        values = list(situation.live.get(settings.measure, ()))
        numbers: dict[str, float] = {"conversations": len(values), "drop": settings.drop, "level": settings.level}
        if len(values) < settings.minimum:
            sentence = f"{len(values)} conversations of the champion have a {settings.measure}, {settings.minimum} tell"
            return Finding(reason="live_reward", holds=False, numbers=numbers, sentence=sentence)
        half = len(values) // 2
        before, after = values[:half], values[half:]
        means, p = (fmean(before), fmean(after)), _chance(before, after)
        return Finding(
            reason="live_reward",
            holds=means[0] - means[1] >= settings.drop and p <= settings.level,
            numbers={**numbers, "before": means[0], "after": means[1], "p": p},
            sentence=f"mean {settings.measure} of its users went from {means[0]:.3f} to {means[1]:.3f} (p = {p:.3f})",
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

    def check(self, situation: Situation) -> Finding:
        """Compares today's judgement with the one at its registration, until a retraining has answered it."""
        serving = situation.serving
        if serving is not None and situation.judged is not None:
            sentence = f"a retraining was judged against {serving.name} on {situation.judged:%Y-%m-%d}"
            return Finding(reason="heldout_reward", holds=False, numbers={"drop": self._drop}, sentence=sentence)
        if serving is None or serving.heldout is None or serving.judged_again is None:
            sentence = _UNSERVED if serving is None else f"no report says how {serving.name} was judged"
            return Finding(reason="heldout_reward", holds=False, numbers={"drop": self._drop}, sentence=sentence)
        mean, high = serving.judged_again
        return Finding(
            reason="heldout_reward",
            holds=high <= serving.heldout - self._drop,
            numbers={"registered": serving.heldout, "now": mean, "high": high, "drop": self._drop},
            sentence=f"its held-out mean was {serving.heldout:.3f} when registered, now {mean:.3f} (≤ {high:.3f})",
        )


class Age:
    """The champion is old."""

    def __init__(self, settings: AgeSettings) -> None:
        self._days = settings.days

    def check(self, situation: Situation) -> Finding:
        """Counts days since it was registered, or since a retraining was judged against it."""
        serving, judged = situation.serving, situation.judged
        begun = judged if judged is not None else serving.registered if serving is not None else None
        if begun is None:
            return Finding(reason="age", holds=False, numbers={"limit": self._days}, sentence=_UNSERVED)
        days = (situation.now - begun).total_seconds() / _DAY_S
        what = (
            "a retraining was last judged"
            if serving is None or judged is not None
            else f"{serving.name} was registered"
        )
        return Finding(
            reason="age",
            holds=days >= self._days,
            numbers={"days": days, "limit": self._days},
            sentence=f"{what} {days:.1f} days ago, {self._days:g} are too many",
        )
