"""Checks of the update: gradient, learning rate, KL divergence, clipping, and log-probabilities of the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from grpo.diagnosis.evidence import LEAST_ITERATIONS, WINDOW, RunEvidence, share
from grpo.evaluation.explanation import Diagnosis

ZERO_GRADIENT = 1e-8
"""Gradient norm that is 0 up to rounding. Real ones are above 1e-3, also where the policy hardly errs."""
HARDLY_MOVED = 1e-4
"""Largest KL to the start, nats per token, of weights that hardly move: a token's probability then changes by about
√(2·1e-4) = 1.4 %. In a run that learns, it is above .005 after the first update."""
FALL = 0.2
"""Fall of success, or of the reward as a share of its scale, from the best window to the last …"""
FALL_ERRORS = 3.0
"""… if it is also this many standard errors of a difference of windows, over their scenarios. With 2, the best of many
windows would often be far enough above the last by chance."""
KL_JUMP = 1.0
"""Largest rise of the KL to the start in one update, nats per token. In runs that learn it is under .3."""
KL_RUNAWAY = 1.0
"""KL to the start, nats per token, at which a typical token is e times likelier than before. Runs that learn end below
.3 in this project. The gate `kl` refuses at 5 by default."""
CLIPPED = 0.3
"""Most tokens with a clipped importance ratio. They have no gradient. PPO runs have .05 to .2 as a rule."""
MISMATCH = 0.5
"""Share of `training.max_mismatch_kl`, at which the run stops, from which sampler and learner differ too much."""
MASKED = 0.1
"""Most tokens in sequences that importance_sampling_mask excluded, because the sampler was another policy."""
DROPPED = 0.2
"""Most episodes of a continuous rollout that are dropped, because they are too stale. Their tokens were generated for
nothing, and long episodes are dropped most, so the updates see too few of them."""
REJECTED = 0.5
"""Most trust-region steps without an acceptable length. At more, half of the rollouts are lost."""
_DIVERGED, _NO_EFFECT, _NO_STEP = "narrow the clip range", "no effect: iteration", "has no step within KL"
_STALE = ("importance ratio before the first step", "more than training.max_mismatch_kl", "was sampled by policy")
"""Parts of the messages with which an update stops the run."""


def zero_gradient(evidence: RunEvidence) -> Diagnosis | None:
    """A gradient of 0, although rewards differ."""
    norms = evidence.series(lambda iteration: iteration.gradient_norm)
    informative = evidence.series(lambda iteration: iteration.informative_share)
    if not norms or max(norms) > ZERO_GRADIENT or max(informative) == 0:
        return None
    lora = evidence.setting("training.lora")
    return Diagnosis(
        kind="zero_gradient",
        certainty="certain",
        measured=f"the gradient norm is at most {max(norms):.1g} in {len(norms)} updates, although "
        f"{fmean(informative):.0%} of the groups have different rewards",
        meaning="No weight gets a gradient, so the optimizer has nothing to apply.",
        change="set training.lora.target_modules to all-linear, because the adapters take no part in the forward pass"
        if lora
        else "check the layers that a model of your own trains; training.precision fp32 rules out an underflow",
        command=evidence.train("training.lora.target_modules=all-linear" if lora else "training.precision=fp32"),
    )


def learning_rate_too_small(evidence: RunEvidence) -> Diagnosis | None:
    """Weights that hardly move."""
    kls = evidence.series(lambda iteration: iteration.kl_to_base)
    norms = evidence.series(lambda iteration: iteration.gradient_norm)
    step, value, larger = evidence.scaled_step(10)
    stopped = _NO_EFFECT in evidence.decision.reason
    still = len(kls) >= LEAST_ITERATIONS and max(kls) < HARDLY_MOVED and max(norms, default=0.0) > ZERO_GRADIENT
    if not stopped and (not still or evidence.is_learning):
        return None
    larger = larger or 1e-4
    return Diagnosis(
        kind="learning_rate_too_small",
        certainty="certain" if stopped else "likely",
        measured=f"no weight changed at {step} {value:g}"
        if stopped
        else f"the KL to the start is at most {max(kls):.1g} nats per token after {len(kls) - 1} updates "
        f"(bound {HARDLY_MOVED:g}), with a gradient norm of {fmean(norms):.2g}",
        meaning="The gradient is there, but the steps are too small to change the replies.",
        change=f"raise {step} from {value:g} to {larger:g}",
        command=evidence.train(f"{step}={larger:g}"),
    )


def learning_rate_too_large(evidence: RunEvidence) -> Diagnosis | None:
    """An update that diverged or moved the policy far away, or progress that falls far below its best."""
    step, value, smaller = evidence.scaled_step(1 / 3)
    epochs = int(evidence.setting("training.epochs", 1))
    kls = evidence.series(lambda iteration: iteration.kl_to_base)
    jump = max((after - before for before, after in pairwise(kls)), default=0.0)
    best, latest = _best_and_last(evidence.progress)
    fall = best - latest
    falls = fall >= FALL * evidence.scale and fall >= FALL_ERRORS * 2**0.5 * evidence.window_error
    if _DIVERGED in evidence.decision.reason:
        measured = "an update diverged: its loss or gradient is not finite"
    elif jump > KL_JUMP and not evidence.is_learning and not evidence.is_solved:
        measured = f"one update raised the KL to the start by {jump:.2g} nats per token (bound {KL_JUMP:g})"
    elif falls:
        measured = (
            f"the mean of {WINDOW} iterations fell from {best:.3g} at its best to {latest:.3g} at the end "
            f"(bound {FALL:g} of the scale)"
        )
    else:
        return None
    return Diagnosis(
        kind="learning_rate_too_large",
        certainty="likely" if measured.startswith("the mean") else "certain",
        measured=measured,
        meaning="The steps are so large that they destroy what the model or earlier steps have learned.",
        change=f"lower {step} from {value:g} to {smaller:g}, or "
        + (f"training.epochs from {epochs} to 1" if epochs > 1 else "add a KL penalty (training.beta 0.01)"),
        command=evidence.train(f"{step}={smaller:g}"),
    )


def rejected_steps(evidence: RunEvidence) -> Diagnosis | None:
    """Trust-region steps of which the line search rejects all lengths, so that the policy stays as it is."""
    steps = evidence.series(lambda iteration: iteration.step_kl)
    stopped = _NO_STEP in evidence.decision.reason
    value = share(step == 0 for step in steps)
    if not stopped and (not steps or value <= REJECTED):
        return None
    most = float(evidence.setting("training.trust_region.max_kl", 0.01))
    halvings = int(evidence.setting("training.trust_region.line_search_steps", 10))
    return Diagnosis(
        kind="rejected_steps",
        certainty="certain",
        measured=f"no step within a KL of {most:g} lowers the loss"
        if stopped
        else f"the line search rejected {value:.0%} of {len(steps)} trust-region steps (bound {REJECTED:.0%})",
        meaning="A rejected step leaves the policy unchanged, so its rollout is lost.",
        change=f"raise training.trust_region.line_search_steps to {2 * halvings}, or max_kl to {3 * most:g}",
        command=evidence.train(f"training.trust_region.line_search_steps={2 * halvings}"),
    )


def kl_runaway(evidence: RunEvidence) -> Diagnosis | None:
    """A policy far from where it started."""
    kls = evidence.series(lambda iteration: iteration.kl_to_base)
    latest = fmean(kls[-WINDOW:]) if kls else 0.0
    if len(kls) < 2 or latest <= KL_RUNAWAY or evidence.is_solved:
        return None
    beta = float(evidence.setting("training.beta", 0.0))
    new_beta = 3 * beta if beta else 0.01
    return Diagnosis(
        kind="kl_runaway",
        certainty="possible" if evidence.is_learning else "likely",
        measured=f"the KL to the start is {latest:.3g} nats per token (bound {KL_RUNAWAY:g})",
        meaning="The policy has left what the base model knows; replies lose their language, and other tasks suffer.",
        change=f"set training.beta to {new_beta:.2g}; the gate kl bounds it",
        command=evidence.train(f"training.beta={new_beta:.2g}"),
    )


def clipping(evidence: RunEvidence) -> Diagnosis | None:
    """Many tokens beyond the clip range, which have no gradient."""
    shares = evidence.series(lambda iteration: iteration.clip_share)[-WINDOW:]
    if not shares or fmean(shares) <= CLIPPED:
        return None
    step, _, smaller = evidence.scaled_step(1 / 3)
    setting = "training.epochs=1" if int(evidence.setting("training.epochs", 1)) > 1 else f"{step}={smaller:g}"
    fewer = ""
    for name, change in (("groups_per_step", "raise"), ("num_mini_batches", "lower")):
        if evidence.setting(f"training.{name}", None) is not None:
            fewer = f", or {change} training.{name} for fewer steps per rollout"
    return Diagnosis(
        kind="clipping",
        certainty="likely",
        measured=f"{fmean(shares):.1%} of the tokens have a clipped importance ratio (bound {CLIPPED:.0%})",
        meaning="A clipped token has no gradient: the later steps on a rollout repeat what the first has done.",
        change=f"set {setting.replace('=', ' to ')}{fewer}",
        command=evidence.train(setting),
    )


def mismatched_logprobs(evidence: RunEvidence) -> Diagnosis | None:
    """A sampler that is not the policy that is trained."""
    bound = MISMATCH * float(evidence.setting("training.max_mismatch_kl", 0.01))
    distances = evidence.series(lambda iteration: iteration.mismatch_kl)[-WINDOW:]
    masked = evidence.series(lambda iteration: iteration.masked_share)[-WINDOW:]
    stopped = any(part in evidence.decision.reason for part in _STALE)
    distance, excluded = max(distances, default=0.0), max(masked, default=0.0)
    if not stopped and distance <= bound and excluded <= MASKED:
        return None
    backend = evidence.setting("rollout.backend", "transformers")
    if _is_continuous(evidence) and (most := _max_staleness(evidence)):
        remedy = f"rollout.max_staleness={most // 2}"
        change = f"lower rollout.max_staleness from {most} to {most // 2}, so that newer weights sample the rollouts"
    elif int(evidence.setting("rollout.staleness", 0)) > 0:
        remedy = "rollout.staleness=0"
        change = "set rollout.staleness to 0, so that each rollout is sampled by the newest weights"
    else:
        remedy = "rollout.backend=transformers"
        change = f"sample with rollout.backend transformers (it is {backend}), and in the precision of the learner"
    return Diagnosis(
        kind="mismatched_logprobs",
        certainty="certain" if stopped else "likely",
        measured="the run stopped, because the learner does not reproduce the sampler's log-probabilities"
        if stopped
        else f"KL(sampler ‖ policy) is {distance:.2g} nats per token before the first step (bound {bound:.2g}), and "
        f"{excluded:.1%} of the tokens are masked for it (bound {MASKED:.0%})",
        meaning="The importance ratios correct for another policy than the one that acted, so the gradient is biased.",
        change=change,
        command=evidence.train(remedy),
    )


def stale_episodes(evidence: RunEvidence) -> Diagnosis | None:
    """Many episodes of a continuous rollout that are dropped, because they are too stale."""
    if not _is_continuous(evidence):
        return None
    dropped = evidence.series(lambda iteration: iteration.dropped_episodes)
    trained = int(evidence.setting("rollout.scenarios", 32)) * int(evidence.setting("rollout.group_size", 8))
    value = sum(dropped) / max(1.0, sum(dropped) + trained * len(dropped))
    if value <= DROPPED:
        return None
    most = _max_staleness(evidence)
    return Diagnosis(
        kind="stale_episodes",
        certainty="certain",
        measured=f"{value:.0%} of the episodes were dropped, because they would be staler than "
        f"rollout.max_staleness {most} (bound {DROPPED:.0%})",
        meaning="Their tokens were generated for nothing, and the updates see too few of the long episodes.",
        change=f"raise rollout.max_staleness from {most} to {2 * most or 1}, or raise rollout.scenarios",
        command=evidence.train(f"rollout.max_staleness={2 * most or 1}"),
    )


def _is_continuous(evidence: RunEvidence) -> bool:
    return bool(evidence.setting("rollout.mode", "stages") == "continuous")


def _max_staleness(evidence: RunEvidence) -> int:
    return int(evidence.setting("rollout.max_staleness", 0))


CHECKS = (
    mismatched_logprobs, stale_episodes, rejected_steps, zero_gradient, learning_rate_too_small,
    learning_rate_too_large, clipping, kl_runaway,
)  # fmt: skip


def _best_and_last(values: Sequence[float]) -> tuple[float, float]:
    """Largest and last of the means of `WINDOW` successive values: [0 1 1 1 0 .2] → 1, .4. Zeros if too few."""
    if len(values) < 2 * WINDOW:
        return 0.0, 0.0
    windows = [fmean(values[end - WINDOW : end]) for end in range(WINDOW, len(values) + 1)]
    return max(windows), windows[-1]
