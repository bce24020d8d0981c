"""Retraining triggers. Each is checked and reported with its numbers, also if it did not fire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import singledispatch
from statistics import fmean, stdev

from grpo.config.retraining import (
    AgeSettings,
    HeldoutRewardSettings,
    LiveRewardSettings,
    NewConversationsSettings,
    TopicDriftSettings,
    TriggerSettings,
)
from grpo.errors import ConfigError
from grpo.retraining.drift import compare_topics
from grpo.storage.documents import Document

_DAY_S = 86_400.0
_NO_CHAMPION = "no version is in service"


class TriggerResult(Document):
    """Result of one trigger."""

    reason: str
    """Kind of the trigger."""
    fired: bool
    numbers: dict[str, float]
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """Metrics of the champion that triggers read."""

    name: str
    """Name and version, as in the serving log: `support-desk/3`."""
    registered: datetime
    heldout: float | None = None
    """Held-out mean at its registration. None if it has no report."""
    reevaluated: tuple[float, float] | None = None
    """Held-out mean of a new evaluation, and its upper bound. None if it was not evaluated again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerInputs:
    """State of model and conversations when triggers are checked."""

    serving: ServedVersion | None
    """None if there is no champion."""
    now: datetime
    new_conversations: int
    """Accepted conversations since the champion was trained and last challenged."""
    last_evaluated: datetime | None = None
    """Registration of the last challenger. None if there was none."""
    known_topics: Sequence[str] = ()
    """User texts up to then."""
    new_topics: Sequence[str] = ()
    """User texts since then."""
    live: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Production metrics of the champion since then by name, oldest first."""
    seed: int = 0


def check_triggers(triggers: Sequence[TriggerSettings], inputs: TriggerInputs) -> tuple[TriggerResult, ...]:
    """Check `no_champion`, then all triggers in the order of the config."""
    return (no_champion(inputs), *(check_trigger(settings, inputs) for settings in triggers))


@singledispatch
def check_trigger(settings: TriggerSettings, inputs: TriggerInputs) -> TriggerResult:
    """Check one trigger. A new kind of trigger registers its function here."""
    raise ConfigError(f"no check is registered for {type(settings).__name__}")


def no_champion(inputs: TriggerInputs) -> TriggerResult:
    """Fire if no version is in service and none was evaluated yet. If one was refused, the other triggers decide."""
    serving, last_evaluated = inputs.serving, inputs.last_evaluated
    explanation = _NO_CHAMPION if serving is None else f"{serving.name} is in service"
    if serving is None and last_evaluated is not None:
        explanation = f"{_NO_CHAMPION}. The last candidate was evaluated on {last_evaluated:%Y-%m-%d}"
    fired = serving is None and last_evaluated is None
    return TriggerResult(reason="no_champion", fired=fired, numbers={}, explanation=explanation)


@check_trigger.register
def enough_conversations(settings: NewConversationsSettings, inputs: TriggerInputs) -> TriggerResult:
    """Fire if enough conversations were accepted."""
    return TriggerResult(
        reason="new_conversations",
        fired=inputs.new_conversations >= settings.min_conversations,
        numbers={"new": inputs.new_conversations, "minimum": settings.min_conversations},
        explanation=f"{inputs.new_conversations} new conversations passed every filter, {settings.min_conversations} "
        "are enough",
    )


@check_trigger.register
def topic_drift(settings: TopicDriftSettings, inputs: TriggerInputs) -> TriggerResult:
    """Fire when user texts differ from the known ones by a two-sample test."""
    known, new = inputs.known_topics, inputs.new_topics
    numbers: dict[str, float] = {"known": len(known), "new": len(new), "level": settings.significance_level}
    if min(len(known), len(new)) < settings.min_conversations:
        explanation = (
            f"{len(new)} new conversations and {len(known)} in the champion's data, the test needs "
            f"{settings.min_conversations} of each"
        )
        return TriggerResult(reason="topic_drift", fired=False, numbers=numbers, explanation=explanation)
    test = compare_topics(known, new, sample=settings.max_samples, seed=inputs.seed)
    fired = test.p <= settings.significance_level
    verb = "differ" if fired else "do not differ significantly"
    words = f". More frequent now: {', '.join(test.words)}" if fired and test.words else ""
    return TriggerResult(
        reason="topic_drift",
        fired=fired,
        numbers={**numbers, "mmd": test.mmd, "p": test.p},
        explanation=f"user texts {verb} from the champion's data (p = {test.p:.3f}){words}",
    )


@check_trigger.register
def live_reward(settings: LiveRewardSettings, inputs: TriggerInputs) -> TriggerResult:
    """Fire when the newer half of the champion's conversations has a significantly lower mean than the older half."""
    values = list(inputs.live.get(settings.metric, ()))
    numbers: dict[str, float] = {
        "conversations": len(values),
        "drop": settings.drop,
        "level": settings.significance_level,
    }
    if len(values) < settings.min_conversations:
        explanation = (
            f"{len(values)} conversations of the champion have a {settings.metric}, the test needs "
            f"{settings.min_conversations}"
        )
        return TriggerResult(reason="live_reward", fired=False, numbers=numbers, explanation=explanation)
    half = len(values) // 2
    before, after = values[:half], values[half:]
    means, p = (fmean(before), fmean(after)), _welch_p_value(before, after)
    return TriggerResult(
        reason="live_reward",
        fired=means[0] - means[1] >= settings.drop and p <= settings.significance_level,
        numbers={**numbers, "before": means[0], "after": means[1], "p": p},
        explanation=f"mean {settings.metric} of its users went from {means[0]:.3f} to {means[1]:.3f} (p = {p:.3f})",
    )


def _welch_p_value(before: Sequence[float], after: Sequence[float]) -> float:
    """p-value of Welch's one-sided test that the mean of `after` is lower."""
    from scipy.stats import ttest_ind_from_stats

    spreads = stdev(before), stdev(after)
    if not any(spreads):  # two constants have no variance to test against
        return float(fmean(before) <= fmean(after))
    older, newer = (fmean(before), spreads[0], len(before)), (fmean(after), spreads[1], len(after))
    return float(ttest_ind_from_stats(*newer, *older, equal_var=False, alternative="less").pvalue)


@check_trigger.register
def heldout_reward(settings: HeldoutRewardSettings, inputs: TriggerInputs) -> TriggerResult:
    """Fire when a new evaluation of the champion is below its registered mean, until a challenger was evaluated."""
    serving = inputs.serving
    if serving is not None and inputs.last_evaluated is not None:
        explanation = f"a challenger of {serving.name} was evaluated on {inputs.last_evaluated:%Y-%m-%d}"
    elif serving is None or serving.heldout is None or serving.reevaluated is None:
        explanation = _NO_CHAMPION if serving is None else f"no report has the held-out mean of {serving.name}"
    else:
        mean, high = serving.reevaluated
        return TriggerResult(
            reason="heldout_reward",
            fired=high <= serving.heldout - settings.drop,
            numbers={"registered": serving.heldout, "now": mean, "high": high, "drop": settings.drop},
            explanation=f"its held-out mean was {serving.heldout:.3f} when registered, now {mean:.3f} (≤ {high:.3f})",
        )
    return TriggerResult(reason="heldout_reward", fired=False, numbers={"drop": settings.drop}, explanation=explanation)


@check_trigger.register
def age(settings: AgeSettings, inputs: TriggerInputs) -> TriggerResult:
    """Fire if enough days have passed since the champion was registered or last challenged."""
    serving, challenged = inputs.serving, inputs.last_evaluated
    start = challenged if challenged is not None else serving.registered if serving is not None else None
    if start is None:
        return TriggerResult(reason="age", fired=False, numbers={"limit": settings.days}, explanation=_NO_CHAMPION)
    days = (inputs.now - start).total_seconds() / _DAY_S
    event = (
        f"{serving.name} was registered"
        if serving is not None and challenged is None
        else "the last challenger was evaluated"
    )
    return TriggerResult(
        reason="age",
        fired=days >= settings.days,
        numbers={"days": days, "limit": settings.days},
        explanation=f"{event} {days:.1f} days ago, the limit is {settings.days:g}",
    )
