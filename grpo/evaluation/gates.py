"""Promotion gates: each checks one number of the evaluation against its bound.

If a gate lacks the evidence that it needs, it fails, and its meaning names what is missing. If a retraining holds out
conversations as well as base scenarios, the conversations are not enough to pass a gate:

    improvement      four checks: of the whole, of the whole without the `colluding_keys` keys that raise it most, no
                     larger loss on the base scenarios than `max_base_loss`, and no shown loss on the conversations
    category         the categories of the base scenarios, and all conversations as one group
    pass_hat_k       the base scenarios
    safety, length, truncation, failure, latency      the whole, and the base scenarios once more
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Literal

import numpy as np

from grpo.config.gates import (
    CategoryGate,
    FailureGate,
    GateSettings,
    ImprovementGate,
    KLGate,
    LatencyGate,
    LengthGate,
    Metric,
    MustPassGate,
    PassGate,
    PythonGate,
    SafetyGate,
    TruncationGate,
)
from grpo.errors import ConfigError
from grpo.evaluation.evidence import Evidence
from grpo.evaluation.metrics import metric_values, pair_episodes, scenario_means
from grpo.evaluation.safety_gate import check_safety
from grpo.evaluation.schema import Decision, GateCheck, Interval
from grpo.evaluation.statistics import upper_bound
from grpo.evaluation.strata import BASE, CONVERSATIONS
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory
from grpo.user_failures import shown, user_code
from grpo.user_objects import bind

_SHOWN = 12
"""Digits of a key's hash in a meaning."""
_SLOWEST = 0.95
"""Quantile of the turns that the latency gate bounds."""


def gate(evidence: Evidence, gates: Sequence[GateSettings]) -> Decision:
    """Apply all gates. The verdict is `promote` if every gate passes and the weights are not the champion's.

    Raises `ConfigError` if the list of gates is empty.
    """
    if not gates:
        raise ConfigError(
            "gates is empty. Name at least one gate, because a candidate that nothing judges is not promoted"
        )
    checks = tuple(result for settings in gates for result in (check(settings, evidence), *_apart(settings, evidence)))
    failures = [_failure(result) for result in checks if not result.passed]
    evaluation = evidence.evaluation
    if evaluation.candidate_policy == evaluation.champion_policy:
        failures.insert(0, f"the candidate has the weights of the champion, policy {evaluation.candidate_policy}")
    if failures:
        return Decision(verdict="refuse", reason="; ".join(failures), checks=checks)
    difference = evaluation.overall.difference
    reason = (
        f"held-out {evaluation.metric} changed by {difference.mean:.3f} "
        f"[{difference.low:.3f}, {difference.high:.3f}] and every gate passed"
    )
    return Decision(verdict="promote", reason=reason, checks=checks)


def check_gate_scenarios(gates: Sequence[GateSettings], scenarios: Iterable[Scenario]) -> None:
    """Raise `ConfigError` when a gate names scenarios or categories that are not held out."""
    heldout, categories = set[str](), set[str]()
    for scenario in scenarios:
        heldout.add(scenario.id)
        if scenario.metadata.origin is None:
            categories.add(scenario.metadata.category)
    for gate in gates:
        if isinstance(gate, MustPassGate) and (unknown := sorted(set(gate.scenarios) - heldout)):
            raise ConfigError(
                f"gate must_pass: {', '.join(unknown[:5])} ({len(unknown)} in all) are not among the {len(heldout)} "
                "held-out scenarios. Declare them `split: heldout` in the source, or take them out of the gate"
            )
        if isinstance(gate, CategoryGate) and (unknown := sorted(gate.max_drop_by_category.keys() - categories)):
            raise ConfigError(
                f"gate category: no held-out scenario is of category {', '.join(unknown)}. There are "
                f"{', '.join(sorted(categories))}"
            )


@singledispatch
def check(settings: GateSettings, evidence: Evidence) -> GateCheck:
    """Check one gate. A gate of a new kind registers its function here."""
    raise ConfigError(f"no check is registered for {type(settings).__name__}")


@check.register
def improvement(settings: ImprovementGate, evidence: Evidence) -> GateCheck:
    """Check the lower bound of the paired difference."""
    metric = settings.metric or evidence.evaluation.metric
    name = f"improvement in {metric}"
    difference = evidence.difference(metric)
    if difference is None:
        return _missing(name, ">", settings.margin, f"no held-out episode has a {metric}")
    return GateCheck.of(name, difference.low, ">", settings.margin, _paired(metric, difference))


def _apart(settings: GateSettings, evidence: Evidence) -> Iterator[GateCheck]:
    """Check base scenarios and conversations apart: neither hides a loss on the other, and few keys do not decide."""
    if not evidence.strata.origins:
        return
    base = evidence.base()
    if base is not None and isinstance(settings, (SafetyGate, LengthGate, TruncationGate, FailureGate, LatencyGate)):
        result = check(settings, base)
        yield result.model_copy(update={"name": f"{result.name}, {BASE}"})
    if not isinstance(settings, ImprovementGate):
        return
    metric = settings.metric or evidence.evaluation.metric
    name, bound = f"change in {metric}, {BASE}", -settings.max_base_loss
    difference = None if base is None else base.difference(metric)
    if difference is None:
        yield _missing(name, ">", bound, f"no held-out episode of the {BASE} has a {metric}")
    else:
        yield GateCheck.of(name, difference.low, ">", bound, _paired(metric, difference))
    conversations = evidence.conversations()
    change = None if conversations is None else conversations.difference(metric)
    if change is not None:  # without outcomes they have no share in the improvement either
        meaning = f"upper bound of the paired difference in {metric}, {change.mean:+.3f} over {change.count} scenarios"
        yield GateCheck.of(f"change in {metric}, {CONVERSATIONS}", change.high, ">=", 0.0, meaning)
    if not settings.colluding_keys or len(evidence.strata.keys) < 2:  # a single key has none to be compared with
        return
    keys = evidence.most_helpful_keys(metric, settings.colluding_keys)
    number = "any one key" if len(keys) == 1 else f"any {len(keys)} keys"
    name = f"improvement in {metric} without {number}"
    shown = f"without {', '.join(key[:_SHOWN] or 'unknown' for key in keys)}, the key or keys that raise it most"
    difference = evidence.without_keys(keys).difference(metric)
    if difference is None:
        yield _missing(name, ">", settings.margin, f"{shown}, no held-out episode has a {metric}")
    else:
        yield GateCheck.of(name, difference.low, ">", settings.margin, f"{_paired(metric, difference)} {shown}")


def _paired(metric: Metric, difference: Interval) -> str:
    return f"lower bound of the paired difference in {metric}, {difference.mean:+.3f} over {difference.count} scenarios"


@check.register
def category(settings: CategoryGate, evidence: Evidence) -> GateCheck:
    """Check the category nearest to its allowed drop, among the categories that are shown to have dropped.

    A category is shown to have dropped if the upper bound of its change is below 0 at the confidence
    1 - (1 - `confidence`) / categories (Bonferroni). If none has dropped, chance shows a drop of any of them with a
    probability of at most 1 - `confidence`. The bound at `confidence` of a category that has dropped must be at least
    -`max_drop`.
    """
    metric, strata = settings.metric or evidence.evaluation.metric, evidence.strata
    pairs = pair_episodes(evidence.champion, evidence.candidate)
    values = metric_values(pairs, metric, key=strata.category)
    everywhere = {trajectory.category for trajectory in strata.base([*evidence.champion, *evidence.candidate])}
    name = "worst category"
    if unseen := sorted((everywhere | settings.max_drop_by_category.keys()) - values.keys()):
        return _missing(
            name, ">=", -settings.max_drop, f"both policies have no {metric} in category {', '.join(unseen)}"
        )
    changes = {label: np.diff(scenario_means(scenarios))[:, 0] for label, scenarios in values.items()}
    largest = 1.0 if metric == "success" else max(float(np.abs(array).max()) for array in changes.values())
    limits = {label: -settings.max_drop_by_category.get(label, settings.max_drop) for label in changes}

    def bounds(confidence: float) -> dict[str, float]:
        return {label: upper_bound(array, confidence=confidence, largest=largest) for label, array in changes.items()}

    def meaning(label: str, confidence: float) -> str:
        change = f"{changes[label].mean():+.3f} over {len(changes[label])} scenarios"
        return f"upper bound at {confidence:.4g} of the change in {metric} in category {label}, {change}"

    corrected = 1 - (1 - settings.confidence) / len(changes)
    overall = bounds(corrected)
    dropped = [label for label in changes if overall[label] < 0]
    if not dropped:
        lowest = min(changes, key=lambda label: (overall[label], label))
        count = f"{settings.confidence:.0%} over {len(changes)} categories"
        return GateCheck.of(name, overall[lowest], ">=", 0.0, f"{meaning(lowest, corrected)}, which is {count}")
    likely = bounds(settings.confidence)
    worst = min(dropped, key=lambda label: (likely[label] - limits[label], label))
    shown = f"{meaning(worst, settings.confidence)}, the one nearest to its limit of those that got worse"
    return GateCheck.of(name, likely[worst], ">=", limits[worst], shown)


@check.register
def pass_hat(settings: PassGate, evidence: Evidence) -> GateCheck:
    """Check the lower bound of the candidate's pass^k."""
    name = f"pass^{settings.k}"
    judged = evidence.base() if evidence.strata.origins else evidence
    rates = judged.evaluation.pass_hat_k if judged is not None else ()
    if len(rates) < settings.k:
        return _missing(name, ">=", settings.floor, f"no scenario has {settings.k} verified episodes")
    rate = rates[settings.k - 1].candidate
    return GateCheck.of(
        name,
        rate.low,
        ">=",
        settings.floor,
        f"lower bound of the candidate's success in each of {settings.k} attempts, {rate.mean:.3f} over {rate.count} "
        "scenarios",
    )


@check.register
def safety(settings: SafetyGate, evidence: Evidence) -> GateCheck:
    """Check the share of the candidate's episodes with an unsafe reply, see `grpo.evaluation.safety_gate`."""
    return check_safety(settings, evidence.candidate)


@check.register
def must_pass(settings: MustPassGate, evidence: Evidence) -> GateCheck:
    """Count the listed scenarios with an episode that did not succeed."""
    required = set(settings.scenarios)
    episodes: dict[str, list[Trajectory]] = {}
    for trajectory in evidence.candidate:
        if trajectory.scenario_id in required:
            episodes.setdefault(trajectory.scenario_id, []).append(trajectory)
    unverified = [
        scenario
        for scenario, members in episodes.items()
        if any(t.success is None and t.stop != "failed" for t in members)
    ]
    if absent := sorted({*required - episodes.keys(), *unverified}):
        return _missing("must pass", "<=", 0, f"no verified outcome of {_first_five(absent)}")
    lost = sorted(scenario for scenario, members in episodes.items() if not all(t.success for t in members))
    names = f": {_first_five(lost)}" if lost else ""
    meaning = f"failed scenarios of {len(required)} that must succeed{names}"
    return GateCheck.of("must pass", len(lost), "<=", 0, meaning)


@check.register
def kl(settings: KLGate, evidence: Evidence) -> GateCheck:
    """Check the KL to the base policy."""
    return GateCheck.of("KL to the base", evidence.evaluation.kl_to_base, "<=", settings.max_nats, "nats per token")


@check.register
def length(settings: LengthGate, evidence: Evidence) -> GateCheck:
    """Check the growth of completions."""
    meaning = "completion tokens per episode, candidate over champion"
    if not sum(trajectory.completion_tokens for trajectory in evidence.champion):
        return _missing("length", "<=", settings.max_ratio, "the champion has no completion tokens")
    return GateCheck.of("length", evidence.evaluation.length_ratio, "<=", settings.max_ratio, meaning)


@check.register
def truncation(settings: TruncationGate, evidence: Evidence) -> GateCheck:
    """Check the share of episodes that a token limit truncated. The environment's limit of turns does not count."""
    value = evidence.evaluation.truncated_share
    return GateCheck.of("truncated episodes", value, "<=", settings.max_rate, "share of the candidate's episodes")


@check.register
def failure(settings: FailureGate, evidence: Evidence) -> GateCheck:
    """Check the share of failed episodes."""
    value = evidence.evaluation.failed_share
    return GateCheck.of("failed episodes", value, "<=", settings.max_rate, "share of the candidate's episodes")


@check.register
def latency(settings: LatencyGate, evidence: Evidence) -> GateCheck:
    """Check the latency of the agent's turns, computed from their completion tokens.

    Measured time would make the decision depend on the load of the machine.
    """
    tokens = [count for trajectory in evidence.candidate for count in _tokens_by_turn(trajectory)]
    if not tokens:
        return _missing("latency", "<=", settings.max_p95_s, "the candidate has no turn")
    slow = float(np.quantile(tokens, _SLOWEST, method="higher"))
    return GateCheck.of(
        "latency",
        slow / settings.tokens_per_s,
        "<=",
        settings.max_p95_s,
        f"seconds within which {_SLOWEST:.0%} of {len(tokens)} turns end: {slow:g} tokens, tool calls included, at "
        f"{settings.tokens_per_s:g} per second",
    )


@check.register
def own(settings: PythonGate, evidence: Evidence) -> GateCheck:
    """Call a gate of the user's own. Raises `ConfigError` if it raises or does not return a `GateCheck`."""
    judge = bind(settings.reference, settings.options)
    with user_code(f"gate {settings.reference}", remedy="Correct it", error=ConfigError):
        # with lists of its own, because later gates judge by the same episodes
        result = judge(replace(evidence, champion=[*evidence.champion], candidate=[*evidence.candidate]))
    if inspect.iscoroutine(result):
        result.close()
    if not isinstance(result, GateCheck):
        raise ConfigError(
            f"gate {settings.reference} returned {shown(result)}. Return GateCheck.of(name, value, relation, bound, "
            "meaning)"
        )
    value = result.value
    if result.passed and (value is None or not GateCheck.of("", value, result.relation, result.bound, "").passed):
        raise ConfigError(
            f"gate {settings.reference} passes with the value {value}, which must be {result.relation} "
            f"{result.bound:g}. Make its result with GateCheck.of, which compares them"
        )
    return result


def _tokens_by_turn(trajectory: Trajectory) -> Iterator[int]:
    """Completion tokens between one message of the user and the next."""
    tokens: int | None = None
    for turn in trajectory.turns:
        if turn.message.role == "assistant":
            tokens = (tokens or 0) + int(trajectory.loss_mask[turn.start : turn.stop].sum())
        elif turn.message.role == "user" and tokens is not None:
            yield tokens
            tokens = None
    if tokens is not None:
        yield tokens


def _missing(name: str, relation: Literal[">", "<=", ">="], bound: float, reason: str) -> GateCheck:
    """Fail a check that has no evidence."""
    return GateCheck(
        name=name, value=None, relation=relation, bound=bound, passed=False, meaning=f"no evidence: {reason}"
    )


def _failure(check: GateCheck) -> str:
    if check.value is None:
        return f"{check.name}: {check.meaning}"
    return f"{check.name} is {check.value:.4g}, must be {check.relation} {check.bound:g}"


def _first_five(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
