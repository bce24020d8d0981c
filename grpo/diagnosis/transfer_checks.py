"""Checks of the transfer from training to held-out scenarios: their number, overlap and categories, overfitting."""

from __future__ import annotations

import math
from collections import Counter

from grpo.diagnosis.evidence import ENOUGH, RISE_ERRORS, RunEvidence, prompt_of, rise, rise_error, success_share
from grpo.diagnosis.exploration_checks import ALIKE_PROMPTS
from grpo.evaluation.explanation import Diagnosis

GAP = 0.15
"""Success in training above held-out success from which the policy has learned its scenarios …"""
GAP_ERRORS = 3.0
"""… if it is also this many standard errors, of both shares over their scenarios."""
FEW_SCENARIOS = 32
"""Training scenarios below which …"""
MANY_PASSES = 10.0
"""… this many passes over each teach them by heart. Default runs make fewer than 3."""
SHARED_PROMPTS = 0.05
"""Most held-out scenarios whose prompt is also trained on. The success of these measures memory."""
UNSEEN = 0.2
"""Most held-out scenarios of categories that are not trained on …"""
UNSEEN_CHANCE = 0.01
"""… if this is the largest probability that the training has missed the category by chance."""
GAIN = 0.03
"""Least gain of the candidate that an evaluation with more episodes would be worth."""


def overfitting(evidence: RunEvidence) -> Diagnosis | None:
    """Success in training that held-out scenarios of the same categories do not have."""
    seen = {t.category for t in evidence.last}
    held_out = [t for t in evidence.after if t.category in seen]
    trained, transferred = success_share(evidence.last), success_share(held_out)
    if trained is None or transferred is None or min(len(held_out), len(evidence.last)) < ENOUGH:
        return None
    shares = ((trained, evidence.last), (transferred, held_out))
    error = math.sqrt(sum(p * (1 - p) / len({t.scenario_id for t in episodes}) for p, episodes in shares))
    gap = trained - transferred
    passes = _passes(evidence)
    memorized = evidence.ingestion.train < FEW_SCENARIOS and passes >= MANY_PASSES
    if gap < GAP or (gap < GAP_ERRORS * error and not memorized):
        return None
    return Diagnosis(
        kind="few_scenarios" if memorized else "overfitting",
        certainty="certain" if memorized else "likely",
        measured=f"success is {trained:.1%} in training and {transferred:.1%} on held-out scenarios of the same "
        f"categories (bound {GAP:.0%} apart), after {passes:.1f} passes over {evidence.ingestion.train} scenarios",
        meaning="The policy has learned its training scenarios by heart instead of the task.",
        change="add training scenarios (scenarios.sources, scenarios.limit), or end after fewer iterations"
        if memorized
        else "vary the training scenarios, end after fewer iterations, or set training.beta to 0.01",
        command="grpo ingest CONFIG" if memorized else evidence.train("training.beta=0.01"),
    )


def contamination(evidence: RunEvidence) -> Diagnosis | None:
    """Held-out scenarios with a prompt that is also trained on, in the same state of the world if that is recorded."""
    trained = {t.scenario_id: (prompt_of(t), t.turn_states[:1]) for t in evidence.episodes}
    held_out = {t.scenario_id: (prompt_of(t), t.turn_states[:1]) for t in evidence.after}
    starts = set(trained.values())
    if len(held_out) < ENOUGH or len(starts) < ALIKE_PROMPTS * len(trained):
        return None
    shared = [name for name, start in held_out.items() if start in starts]
    value = len(shared) / len(held_out)
    if value <= SHARED_PROMPTS:
        return None
    return Diagnosis(
        kind="contamination",
        certainty="certain",
        measured=f"{value:.1%} of {len(held_out)} held-out scenarios ({', '.join(shared[:3])}, …) have the prompt of a "
        f"training scenario (bound {SHARED_PROMPTS:.0%}), among the {len(trained)} training scenarios that were "
        "read",
        meaning="The evaluation measures memory: held-out success will be above the success in service.",
        change="remove the copies from the sources, or give copies the same id, so that one split holds all of them",
        command="grpo ingest CONFIG",
    )


def unseen_categories(evidence: RunEvidence) -> Diagnosis | None:
    """Categories that are evaluated and not trained on."""
    seen = {t.scenario_id: t.category for t in evidence.episodes}
    held_out = {t.scenario_id: t.category for t in evidence.after}
    counts = Counter(category for category in held_out.values() if category not in seen.values())
    value = sum(counts.values()) / max(1, len(held_out))
    if len(held_out) < ENOUGH or value <= UNSEEN or (1 - value) ** len(seen) > UNSEEN_CHANCE:
        return None
    return Diagnosis(
        kind="unseen_categories",
        certainty="certain",
        measured=f"{value:.1%} of {len(held_out)} held-out scenarios are of categories that no training episode has "
        f"(bound {UNSEEN:.0%}): {', '.join(name for name, _ in counts.most_common(3))}",
        meaning="Held-out success measures another task than the one that is trained.",
        change="add scenarios of these categories to the training split, or take them out of the held-out split",
        command="grpo ingest CONFIG",
    )


def small_evaluation(evidence: RunEvidence) -> Diagnosis | None:
    """A gain that the evaluation is too small to show."""
    if evidence.evaluation is None or evidence.decision.verdict != "refuse":
        return None
    difference = evidence.evaluation.overall.difference
    if difference.mean < GAIN or difference.low > 0:
        return None
    samples = int(evidence.setting("evaluation.samples", 3))
    needed = math.ceil(difference.count * ((difference.mean - difference.low) / difference.mean) ** 2)
    return Diagnosis(
        kind="small_evaluation",
        certainty="likely",
        measured=f"the candidate is better by {difference.mean:.3g} [{difference.low:.3g}, {difference.high:.3g}] on "
        f"{difference.count} held-out scenarios, so the interval has 0 in it",
        meaning="The policy has learned, but so few held-out scenarios cannot tell the gain from chance.",
        change=f"hold out about {needed} scenarios (scenarios.validation_fraction), or set evaluation.samples to "
        f"{3 * samples}",
        command=evidence.train(f"evaluation.samples={3 * samples}"),
    )


def unfinished(evidence: RunEvidence) -> Diagnosis | None:
    """A training that ended while it was still learning, and was refused."""
    values = evidence.progress
    half = values[len(values) // 2 :]
    if evidence.decision.verdict != "refuse" or len(half) < 4 or not evidence.is_learning or evidence.is_solved:
        return None
    if rise(half) <= RISE_ERRORS * rise_error(half):
        return None
    iterations = int(evidence.setting("training.iterations", len(values)))
    return Diagnosis(
        kind="unfinished",
        certainty="possible",
        measured=f"in the second half of {len(values)} iterations the curve still rose by {rise(half):.3g}",
        meaning="Nothing hinders learning. The training ended before it was done.",
        change=f"raise training.iterations to {2 * iterations}",
        command=evidence.train(f"training.iterations={2 * iterations}"),
    )


CHECKS = (contamination, unseen_categories, overfitting, small_evaluation, unfinished)


def _passes(evidence: RunEvidence) -> float:
    """Passes over each training scenario."""
    drawn = min(int(evidence.setting("rollout.scenarios", 32)), evidence.ingestion.train)
    return len(evidence.iterations) * drawn / max(1, evidence.ingestion.train)
