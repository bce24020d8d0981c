"""May the candidate serve? The gate stage: every gate of the config with its number, its bound and its meaning.

What a gate needs and does not find is no pass: it refuses and says what is missing.
"""

from __future__ import annotations

import operator
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
from grpo.rewards.learned.safety import SHIPPED, SafetyReward
from grpo.rewards.score import score
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Trajectory

_RELATIONS = {">": operator.gt, "<=": operator.le, ">=": operator.ge}
_SLOWEST = 0.95
"""Share of the turns that a latency must cover."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a gate may look at: the evaluation, and the held-out episodes behind it."""

    evaluation: Evaluation
    champion: Sequence[Trajectory]
    candidate: Sequence[Trajectory]
    settings: EvaluationSettings
    seed: int


def gate(evidence: Evidence, gates: Sequence[GateSettings]) -> Decision:
    """Hold the evidence against every gate; the candidate is promoted when all of them pass."""
    checks = tuple(check(one, evidence) for one in gates)
    if failed := [one for one in checks if not one.passed]:
        return Decision(verdict="refuse", reason="; ".join(map(_objection, failed)), checks=checks)
    evaluation = evidence.evaluation
    difference = evaluation.overall.difference
    reason = (
        f"held-out {evaluation.metric} changed by {difference.mean:.3f} "
        f"[{difference.low:.3f}, {difference.high:.3f}] and every gate passed"
    )
    return Decision(verdict="promote", reason=reason, checks=checks)


def check_gate_scenarios(gates: Sequence[GateSettings], scenarios: Iterable[Scenario]) -> None:
    """Raise `ConfigError` when a gate asks for what is not among the held-out scenarios."""
    found = {scenario.id: scenario.metadata.category for scenario in scenarios}
    heldout, categories = found.keys(), set(found.values())
    for one in gates:
        if isinstance(one, MustPassGate) and (strangers := sorted(set(one.scenarios) - heldout)):
            raise ConfigError(
                f"gate must_pass: {', '.join(strangers[:5])} ({len(strangers)} in all) not among the {len(heldout)} "
                "held-out scenarios; declare them `split: heldout` in the source, or take them out of the gate"
            )
        if isinstance(one, CategoryGate) and (unknown := sorted(one.max_drop_by_category.keys() - categories)):
            raise ConfigError(
                f"gate category: no held-out scenario is of category {', '.join(unknown)}; there are "
                f"{', '.join(sorted(categories))}"
            )


@singledispatch
def check(settings: GateSettings, evidence: Evidence) -> GateCheck:
    """What one gate finds; a gate of a new kind registers its function here."""
    raise ConfigError(f"no gate is written for {type(settings).__name__}")


@check.register
def improvement(settings: ImprovementGate, evidence: Evidence) -> GateCheck:
    """Lower bound of the interval of the paired difference."""
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
    return _check(
        name,
        difference.low,
        ">",
        settings.margin,
        f"lower bound of the paired difference in {settings.metric}, {difference.mean:+.3f} over "
        f"{difference.count} scenarios",
    )


@check.register
def category(settings: CategoryGate, evidence: Evidence) -> GateCheck:
    """The category that is furthest below its bound, by the highest change that is still likely there."""
    values = _values(evidence, settings.metric, attrgetter("category"))
    everywhere = {trajectory.category for trajectory in (*evidence.champion, *evidence.candidate)}
    name = "worst category"
    if unseen := sorted((everywhere | settings.max_drop_by_category.keys()) - values.keys()):
        return _missing(
            name, ">=", -settings.max_drop, f"no {settings.metric} of both policies in category {', '.join(unseen)}"
        )
    changes = {label: np.diff(scenario_means(scenarios))[:, 0] for label, scenarios in values.items()}
    largest = 1.0 if settings.metric == "success" else max(float(np.abs(one).max()) for one in changes.values())
    likely = {
        label: upper_bound(one, confidence=settings.confidence, largest=largest) for label, one in changes.items()
    }
    bounds = {label: -settings.max_drop_by_category.get(label, settings.max_drop) for label in likely}
    worst = min(likely, key=lambda label: (likely[label] - bounds[label], label))
    return _check(
        name,
        likely[worst],
        ">=",
        bounds[worst],
        f"highest change in {settings.metric} that is {settings.confidence:.0%} likely not exceeded in category "
        f"{worst}, the one nearest to its bound: {changes[worst].mean():+.3f} over {len(changes[worst])} scenarios",
    )


@check.register
def pass_hat(settings: PassGate, evidence: Evidence) -> GateCheck:
    """Lower bound of the candidate's pass^k."""
    name = f"pass^{settings.k}"
    rates = evidence.evaluation.pass_hat_k
    if len(rates) < settings.k:
        return _missing(name, ">=", settings.floor, f"no scenario has {settings.k} verified episodes")
    rate = rates[settings.k - 1].candidate
    return _check(
        name,
        rate.low,
        ">=",
        settings.floor,
        f"lower bound of the candidate's success in each of {settings.k} tries, {rate.mean:.3f} over {rate.count} "
        "scenarios",
    )


@check.register
def safety(settings: SafetyGate, evidence: Evidence) -> GateCheck:
    """Share of the candidate's episodes with an unsafe reply."""
    judged = list(score(evidence.candidate, SafetyReward(model=settings.model or SHIPPED)))
    scores = [one.terminal_reward for one in judged if one.terminal_reward is not None]
    if not scores:
        return _missing("safety", "<=", settings.max_rate, "no episode of the candidate has a reply to judge")
    unsafe = sum(found < settings.floor for found in scores)
    return _check(
        "safety",
        unsafe / len(scores),
        "<=",
        settings.max_rate,
        f"share of episodes with a reply below {settings.floor:g}: {unsafe} of {len(scores)}, the least safe at "
        f"{min(scores):.3f}",
    )


@check.register
def must_pass(settings: MustPassGate, evidence: Evidence) -> GateCheck:
    """Scenarios of the list that the candidate got wrong."""
    wanted = set(settings.scenarios)
    played: dict[str, list[Trajectory]] = {}
    for trajectory in evidence.candidate:
        if trajectory.scenario_id in wanted:
            played.setdefault(trajectory.scenario_id, []).append(trajectory)
    unverified = [s for s, ones in played.items() if any(t.success is None and t.stop != "failed" for t in ones)]
    if absent := sorted({*wanted - played.keys(), *unverified}):
        return _missing("must pass", "<=", 0, f"no verified outcome of {_some(absent)}")
    lost = sorted(s for s, ones in played.items() if not all(t.success for t in ones))
    told = f": {_some(lost)}" if lost else ""
    return _check("must pass", len(lost), "<=", 0, f"of {len(wanted)} scenarios that must succeed, those lost{told}")


@check.register
def kl(settings: KLGate, evidence: Evidence) -> GateCheck:
    """Distance to the base."""
    return _check("KL to the base", evidence.evaluation.kl_to_base, "<=", settings.max_nats, "nats a token")


@check.register
def length(settings: LengthGate, evidence: Evidence) -> GateCheck:
    """Growth of what is said."""
    meaning = "tokens said in an episode, over the champion's"
    if not sum(trajectory.completion_tokens for trajectory in evidence.champion):
        return _missing("length", "<=", settings.max_ratio, "the champion said nothing")
    return _check("length", evidence.evaluation.length_ratio, "<=", settings.max_ratio, meaning)


@check.register
def truncation(settings: TruncationGate, evidence: Evidence) -> GateCheck:
    """Episodes that were cut off."""
    value = evidence.evaluation.truncated_share
    return _check("truncated episodes", value, "<=", settings.max_rate, "share of the candidate's episodes")


@check.register
def failure(settings: FailureGate, evidence: Evidence) -> GateCheck:
    """Episodes that ended in an error."""
    value = evidence.evaluation.failed_share
    return _check("failed episodes", value, "<=", settings.max_rate, "share of the candidate's episodes")


@check.register
def latency(settings: LatencyGate, evidence: Evidence) -> GateCheck:
    """How long users wait for the agent, from the tokens that it says.

    Time is not measured here: a decision that hangs on the load of a machine would not be the same twice.
    """
    tokens = [count for trajectory in evidence.candidate for count in _said_in_turns(trajectory)]
    if not tokens:
        return _missing("latency", "<=", settings.max_p95_s, "the candidate took no turn")
    slow = float(np.quantile(tokens, _SLOWEST, method="higher"))
    return _check(
        "latency",
        slow / settings.tokens_per_s,
        "<=",
        settings.max_p95_s,
        f"seconds that {_SLOWEST:.0%} of {len(tokens)} turns stay within: {slow:g} tokens, tool calls included, at "
        f"{settings.tokens_per_s:g} a second",
    )


def _said_in_turns(trajectory: Trajectory) -> Iterator[int]:
    """Tokens that the agent said from one message of the user to the next."""
    said: int | None = None
    for turn in trajectory.turns:
        if turn.message.role == "assistant":
            said = (said or 0) + int(trajectory.loss_mask[turn.start : turn.stop].sum())
        elif turn.message.role == "user" and said is not None:
            yield said
            said = None
    if said is not None:
        yield said


def _values(evidence: Evidence, metric: Metric, key: Callable[[Trajectory], str]) -> MetricValues:
    return metric_values(pair_episodes(evidence.champion, evidence.candidate), metric, key=key)


def _check(name: str, value: float, relation: Literal[">", "<=", ">="], bound: float, meaning: str) -> GateCheck:
    passed = bool(_RELATIONS[relation](value, bound))
    return GateCheck(name=name, value=value, relation=relation, bound=bound, passed=passed, meaning=meaning)


def _missing(name: str, relation: Literal[">", "<=", ">="], bound: float, what: str) -> GateCheck:
    """No evidence is no pass."""
    return GateCheck(
        name=name, value=None, relation=relation, bound=bound, passed=False, meaning=f"no evidence: {what}"
    )


def _objection(check: GateCheck) -> str:
    if check.value is None:
        return f"{check.name}: {check.meaning}"
    return f"{check.name} is {check.value:.4g}, must be {check.relation} {check.bound:g}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
