"""May the candidate serve? The gate stage: conditions with their numbers."""

from __future__ import annotations

import operator

from grpo.config.evaluation import GateSettings
from grpo.evaluation.document import Decision, Evaluation, GateCheck

_RELATIONS = {">": operator.gt, "<=": operator.le, ">=": operator.ge}


def gate(evaluation: Evaluation, settings: GateSettings) -> Decision:
    """Hold an evaluation against every condition; the candidate is promoted when all of them hold."""
    difference = evaluation.overall.difference
    worst = min(evaluation.by_category, key=lambda comparison: comparison.difference.mean)
    checks = (
        _check(
            "improvement",
            difference.low,
            ">",
            settings.margin,
            f"lower bound of the paired difference in {evaluation.metric}",
        ),
        _check(
            "worst category",
            worst.difference.mean,
            ">=",
            -settings.max_category_drop,
            f"change in category {worst.name}, the one that gained least",
        ),
        _check("KL to the base", evaluation.kl_to_base, "<=", settings.max_kl, "nats a token"),
        _check(
            "failed episodes",
            evaluation.failed_share,
            "<=",
            settings.max_failed_share,
            "share of the candidate's episodes that failed or were cut off",
        ),
        _check("length", evaluation.length_ratio, "<=", settings.max_length_ratio, "tokens said, over the champion's"),
    )
    failed = [check for check in checks if not check.passed]
    if failed:
        reason = "; ".join(f"{c.name} is {c.value:.4g}, must be {c.relation} {c.bound:g}" for c in failed)
        return Decision(verdict="refuse", reason=reason, checks=checks)
    reason = (
        f"held-out {evaluation.metric} rose by {difference.mean:.3f} "
        f"[{difference.low:.3f}, {difference.high:.3f}] and every gate passed"
    )
    return Decision(verdict="promote", reason=reason, checks=checks)


def _check(name: str, value: float, relation: str, bound: float, meaning: str) -> GateCheck:
    return GateCheck(
        name=name,
        value=value,
        relation=relation,
        bound=bound,
        passed=bool(_RELATIONS[relation](value, bound)),
        meaning=meaning,
    )
