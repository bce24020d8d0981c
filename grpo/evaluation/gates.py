"""Promotion gates: each checks one number of the evaluation against its bound.

A gate without the evidence that it needs fails, and its meaning names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from operator import attrgetter
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
from grpo.config.pipeline import EvaluationSettings
from grpo.errors import ConfigError
from grpo.evaluation.metrics import (
    MetricValues,
    all_episodes,
    metric_values,
    pair_episodes,
    scenario_means,
    value_range,
)
from grpo.evaluation.schema import Decision, Evaluation, GateCheck
from grpo.evaluation.statistics import compare, upper_bound
from grpo.rewards.learned.safety import JUDGE_NEEDED, SHIPPED, SafetyReward
from grpo.rewards.score import score
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Trajectory
from grpo.user_objects import bind

_SLOWEST = 0.95
"""Quantile of the turns that the latency gate bounds."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Input of a gate: the evaluation and its held-out episodes."""

    evaluation: Evaluation
    champion: Sequence[Trajectory]
    candidate: Sequence[Trajectory]
    settings: EvaluationSettings
    seed: int


def gate(evidence: Evidence, gates: Sequence[GateSettings]) -> Decision:
    """Apply all gates; the verdict is `promote` when every one passes and the weights are not the champion's."""
    checks = tuple(check(settings, evidence) for settings in gates)
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
    heldout = {scenario.id: scenario.metadata.category for scenario in scenarios}
    categories = set(heldout.values())
    for gate in gates:
        if isinstance(gate, MustPassGate) and (unknown := sorted(set(gate.scenarios) - heldout.keys())):
            raise ConfigError(
                f"gate must_pass: {', '.join(unknown[:5])} ({len(unknown)} in all) not among the {len(heldout)} "
                "held-out scenarios; declare them `split: heldout` in the source, or take them out of the gate"
            )
        if isinstance(gate, CategoryGate) and (unknown := sorted(gate.max_drop_by_category.keys() - categories)):
            raise ConfigError(
                f"gate category: no held-out scenario is of category {', '.join(unknown)}; there are "
                f"{', '.join(sorted(categories))}"
            )


@singledispatch
def check(settings: GateSettings, evidence: Evidence) -> GateCheck:
    """Check one gate; a gate of a new kind registers its function here."""
    raise ConfigError(f"no check is registered for {type(settings).__name__}")


@check.register
def improvement(settings: ImprovementGate, evidence: Evidence) -> GateCheck:
    """Check the lower bound of the paired difference."""
    name = f"improvement in {settings.metric}"
    scenarios = _values(evidence, settings.metric, all_episodes).get("all")
    if scenarios is None:
        return _missing(name, ">", settings.margin, f"no held-out episode has a {settings.metric}")
    means = scenario_means(scenarios)
    difference = compare(
        "all",
        means[:, 0],
        means[:, 1],
        ends=value_range(settings.metric, scenarios),
        confidence=evidence.settings.confidence,
        resamples=evidence.settings.resamples,
        seed=evidence.seed,
    ).difference
    return GateCheck.of(
        name,
        difference.low,
        ">",
        settings.margin,
        f"lower bound of the paired difference in {settings.metric}, {difference.mean:+.3f} over "
        f"{difference.count} scenarios",
    )


@check.register
def category(settings: CategoryGate, evidence: Evidence) -> GateCheck:
    """Check the category with the smallest margin between the upper bound of its change and its allowed drop."""
    values = _values(evidence, settings.metric, attrgetter("category"))
    everywhere = {trajectory.category for trajectory in (*evidence.champion, *evidence.candidate)}
    name = "worst category"
    if unseen := sorted((everywhere | settings.max_drop_by_category.keys()) - values.keys()):
        return _missing(
            name, ">=", -settings.max_drop, f"both policies have no {settings.metric} in category {', '.join(unseen)}"
        )
    changes = {label: np.diff(scenario_means(scenarios))[:, 0] for label, scenarios in values.items()}
    largest = 1.0 if settings.metric == "success" else max(float(np.abs(array).max()) for array in changes.values())
    likely = {
        label: upper_bound(array, confidence=settings.confidence, largest=largest) for label, array in changes.items()
    }
    bounds = {label: -settings.max_drop_by_category.get(label, settings.max_drop) for label in likely}
    worst = min(likely, key=lambda label: (likely[label] - bounds[label], label))
    return GateCheck.of(
        name,
        likely[worst],
        ">=",
        bounds[worst],
        f"upper bound at {settings.confidence:.0%} of the change in {settings.metric} in category {worst}, the one "
        f"nearest to its limit: {changes[worst].mean():+.3f} over {len(changes[worst])} scenarios",
    )


@check.register
def pass_hat(settings: PassGate, evidence: Evidence) -> GateCheck:
    """Check the lower bound of the candidate's pass^k."""
    name = f"pass^{settings.k}"
    rates = evidence.evaluation.pass_hat_k
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
    """Check the share of the candidate's episodes with an unsafe reply."""
    scored = list(score(evidence.candidate, SafetyReward(model=settings.model or SHIPPED)))
    scores = [trajectory.terminal_reward for trajectory in scored if trajectory.terminal_reward is not None]
    uncertain = sum(JUDGE_NEEDED in (trajectory.error or "") for trajectory in scored)
    count = len(scores) + uncertain
    if count == 0:
        return _missing("safety", "<=", settings.max_rate, "no episode of the candidate has a reply to score")
    unsafe = sum(value < settings.floor for value in scores)
    least = f", the least safe at {min(scores):.3f}" if scores else ""
    meaning = f"share of episodes with a reply below {settings.floor:g}: {unsafe} of {count}{least}"
    if uncertain:
        meaning += f"; {uncertain} more count as unsafe, because {JUDGE_NEEDED} to separate harm from help in them"
    return GateCheck.of("safety", (unsafe + uncertain) / count, "<=", settings.max_rate, meaning)


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
    """Check the share of truncated episodes."""
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
    """Call a gate of the user's own. Raises `ConfigError` where it fails or does not return a `GateCheck`."""
    judge = bind(settings.reference, settings.options)
    try:
        result = judge(evidence)
    except Exception as error:
        raise ConfigError(f"gate {settings.reference} failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, GateCheck):
        raise ConfigError(
            f"gate {settings.reference} returned {type(result).__name__}; return GateCheck.of(name, value, relation, "
            "bound, meaning)"
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


def _values(evidence: Evidence, metric: Metric, key: Callable[[Trajectory], str]) -> MetricValues:
    return metric_values(pair_episodes(evidence.champion, evidence.candidate), metric, key=key)


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
