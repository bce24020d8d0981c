"""Explanation of a run: all checks, without the consequences of what they find, the most certain first."""

from __future__ import annotations

from statistics import fmean

from grpo.diagnosis import episode_checks, exploration_checks, reward_checks, transfer_checks, update_checks
from grpo.diagnosis.evidence import Check, RunEvidence, read_evidence, share, success_share
from grpo.evaluation.explanation import Diagnosis, Explanation
from grpo.evaluation.schema import ReportDocument
from grpo.rewards.rollout_summary import reply_dependence

CHECKS: tuple[Check, ...] = (
    *episode_checks.CHECKS, *reward_checks.CHECKS, *exploration_checks.CHECKS, *update_checks.CHECKS,
    *transfer_checks.CHECKS,
)  # fmt: skip
"""In the order in which a run depends on them: without episodes no reward, without rewards no advantage, and so on. Of
two diagnoses of the same certainty, the earlier is probably the cause of the later."""
CERTAINTIES = ("certain", "likely", "possible")
CONSEQUENCES: dict[str, tuple[str, ...]] = {
    "failed_episodes": ("uninformative_groups", "tool_errors"),
    "malformed_calls": ("tool_errors", "no_success", "uninformative_groups", "turn_limit"),
    "tool_errors": ("no_success", "uninformative_groups"),
    "truncation": ("no_success", "uninformative_groups", "malformed_calls"),
    "turn_limit": ("no_success", "uninformative_groups"),
    "constant_reward": ("uninformative_groups", "constant_component"),
    "contradicting_reward": (
        *("reward_hacking", "learning_rate_too_large", "dominating_component"),
        *("tool_errors", "malformed_calls", "no_success"),
    ),
    "reward_hacking": ("learning_rate_too_large", "dominating_component"),
    "solved_at_start": ("uninformative_groups", "identical_replies"),
    "no_success": ("uninformative_groups", "constant_component"),
    "identical_replies": ("uninformative_groups", "entropy_collapse"),
    "input_agnostic": ("uninformative_groups",),
    "entropy_collapse": ("uninformative_groups",),
    "mismatched_logprobs": ("clipping", "learning_rate_too_large"),
    "learning_rate_too_large": (
        *("kl_runaway", "entropy_growth", "entropy_collapse", "clipping", "uninformative_groups", "input_agnostic"),
        *("truncation", "turn_limit", "malformed_calls", "tool_errors", "no_success"),
    ),
}
"""Diagnoses that follow from another one, and are left out if that one holds."""


def explain(document: ReportDocument) -> Explanation:
    """Explain why a run does not learn, or that nothing hinders it."""
    evidence = read_evidence(document)
    return Explanation(diagnoses=diagnose(evidence), measurements=measure(evidence), unread=evidence.unread)


def diagnose(evidence: RunEvidence) -> tuple[Diagnosis, ...]:
    """Diagnoses of a run, the most certain first. Consequences of another diagnosis are left out."""
    causes = [diagnosis for check in CHECKS if (diagnosis := check(evidence)) is not None]
    explained = {kind for cause in causes for kind in CONSEQUENCES.get(cause.kind, ())}
    causes = [cause for cause in causes if cause.kind not in explained]
    return tuple(sorted(causes, key=lambda cause: CERTAINTIES.index(cause.certainty)))


def measure(evidence: RunEvidence) -> dict[str, str]:
    """Measurements that are shown with every explanation. Missing ones were not stored or do not apply."""
    shown: dict[str, str] = {}

    def add(name: str, values: list[float], form: str) -> None:
        if values:
            shown[name] = f"{values[0]:{form}} → {values[-1]:{form}}"

    add("reward", evidence.series(lambda i: i.reward), ".3f")
    add("success", evidence.series(lambda i: i.success), ".1%")
    add("informative groups", evidence.series(lambda i: i.informative_share), ".1%")
    add("entropy, nats per token", evidence.series(lambda i: i.entropy), ".3g")
    add("KL to the start, nats per token", evidence.series(lambda i: i.kl_to_base), ".2g")
    add("KL to the teacher, nats per token", evidence.series(lambda i: i.teacher_kl), ".2g")
    add("gradient norm", evidence.series(lambda i: i.gradient_norm), ".3g")
    add("tokens clipped", evidence.series(lambda i: i.clip_share), ".1%")
    add("staleness, updates", evidence.series(lambda i: i.staleness_mean), ".2g")
    add("episodes dropped as too stale", evidence.series(lambda i: i.dropped_episodes), ".0f")
    add("rollout and update busy at once", evidence.series(lambda i: i.busy_share), ".0%")
    if losses := evidence.series(lambda i: i.loss):
        shown["loss"] = f"{fmean(losses):.1g} on average; near 0 is normal, because advantages of a group sum to 0"
    for name, stop in (("truncated", "truncated"), ("at the turn limit", "turn_limit"), ("failed", "failed")):
        if evidence.last:
            shown[f"episodes {name}"] = f"{share(t.stop == stop for t in evidence.last):.1%} of the last iterations"
    if (dependence := reply_dependence(evidence.last)) is not None:
        shown["mutual information of scenario and reply"] = f"{dependence.nats:.2g} nats per token"
    if (held_out := success_share(evidence.after)) is not None:
        shown["held-out success"] = f"{held_out:.1%}"
    return shown
