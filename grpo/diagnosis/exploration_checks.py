"""Checks of the start and of the exploration: success, informative groups, entropy, and dependence on the input."""

from __future__ import annotations

from statistics import fmean

from grpo.diagnosis.evidence import (
    ENOUGH,
    FINE_TUNED,
    LEAST_GROUPS,
    LEAST_ITERATIONS,
    WINDOW,
    RunEvidence,
    groups_of,
    prompt_of,
    share,
    success_share,
)
from grpo.evaluation.explanation import Diagnosis
from grpo.rewards.rollout_summary import reply_dependence

HOPELESS = 0.01
"""Least success. At 1 in 100, 92 % of groups of 8 have no success at all, since .99⁸ = .92."""
CERTAIN_EPISODES = 100
"""Episodes without a success from which success is below 3 % with 95 % confidence (rule of three, 3/n)."""
SOLVED_AT_START = 0.95
"""Success of the first iteration from which little is left to learn: .95⁸ = 66 % of groups of 8 have no failure."""
INFORMATIVE = 0.15
"""Least share of groups with different rewards. Healthy runs end between .2 and .5, or solve the task."""
IDENTICAL = 0.3
"""Most groups of the first iteration in which all replies are the same tokens. Such a group cannot be informative. At
temperature 1 it is rare, since a reply of 10 tokens with .1 nats each is the same in 4 samples with probability .02."""
COLLAPSED = 0.1
"""Least entropy, as a share of the first iteration's. The health checks in notebooks have the same."""
GROWN, GROWN_NATS = 2.0, 0.3
"""Entropy of this many times the first iteration's, and this many nats more, has grown: entropy falls in training,
because the policy learns which replies are paid, unless a bonus or too large steps push it up."""
ALIKE_PROMPTS = 0.8
"""Least share of different prompts. In environments that open all scenarios alike, replies need not differ."""


def no_success(evidence: RunEvidence) -> Diagnosis | None:
    """No success to learn from, although episodes come to an end."""
    ended = [t for t in evidence.episodes if t.stop in ("terminated", "turn_limit") and t.success is not None]
    value, latest = success_share(ended), success_share(evidence.last)
    if value is None or latest is None or len(ended) < ENOUGH or max(value, latest) > HOPELESS:
        return None
    return Diagnosis(
        kind="no_success",
        certainty="certain" if len(ended) >= CERTAIN_EPISODES else "likely",
        measured=f"{sum(bool(t.success) for t in ended)} of {len(ended)} episodes that ended succeed "
        f"(bound {HOPELESS:.0%})",
        meaning="GRPO raises the probability of successes that it samples, so without one it has nothing to raise.",
        change="fine-tune on demonstrations first (sft), start with easier scenarios, or give partial credit (checks)",
        command=evidence.train(FINE_TUNED),
    )


def solved_at_start(evidence: RunEvidence) -> Diagnosis | None:
    """Nothing left to learn from the first iteration on."""
    value = success_share(evidence.first)
    if value is None or len(evidence.first) < ENOUGH or value < SOLVED_AT_START:
        return None
    return Diagnosis(
        kind="solved_at_start",
        certainty="certain",
        measured=f"{value:.1%} of the {len(evidence.first)} episodes of the first iteration succeed "
        f"(bound {SOLVED_AT_START:.0%})",
        meaning="All samples of most groups succeed, so their advantages are 0 and nothing can be gained.",
        change="use harder scenarios, or a reward that grades successes, for example by their length (conciseness)",
        command="grpo ingest CONFIG",
    )


def identical_replies(evidence: RunEvidence) -> Diagnosis | None:
    """Samples of a group that are the same text before any training."""
    groups = [g.trajectories for g in groups_of(evidence.first) if len(g.trajectories) > 1]
    value = share(len({t.token_ids[t.loss_mask].tobytes() for t in members}) == 1 for members in groups)
    if len(groups) < LEAST_GROUPS or value < IDENTICAL:
        return None
    temperature = float(evidence.setting("rollout.temperature", 1.0))
    is_cold = temperature < 1
    return Diagnosis(
        kind="identical_replies",
        certainty="certain",
        measured=f"in {value:.0%} of the {len(groups)} groups of the first iteration all samples are the same tokens "
        f"(bound {IDENTICAL:.0%}), at rollout.temperature {temperature:g}",
        meaning="Equal replies have equal rewards, so there is nothing to compare and the advantages are 0.",
        change="set rollout.temperature to 1"
        if is_cold
        else "raise rollout.temperature to 1.3, or fine-tune for fewer epochs",
        command=evidence.train(f"rollout.temperature={1.0 if is_cold else 1.3}"),
    )


def uninformative_groups(evidence: RunEvidence) -> Diagnosis | None:
    """Groups in which all rewards are equal, for an algorithm that compares the rewards of a group.

    Under a teacher such groups have a gradient.
    """
    value, groups = evidence.informative_share, [g.trajectories for g in evidence.groups]
    compared = evidence.setting("training.algorithm") not in ("ppo", "a2c") and not evidence.is_taught
    if not compared or len(groups) < LEAST_GROUPS or value >= INFORMATIVE or evidence.is_solved:
        return None
    solved = share(all(t.success is True for t in members) for members in groups)
    failed = share(all(t.success is False for t in members) for members in groups)
    size = 2 * int(evidence.setting("rollout.group_size", 8))
    wanted = max(1, int(evidence.setting("rollout.scenarios", 32)) // 2)
    return Diagnosis(
        kind="uninformative_groups",
        certainty="certain",
        measured=f"{value:.1%} of {len(groups)} groups have different rewards (bound {INFORMATIVE:.0%}); in "
        f"{solved:.0%} all samples succeed, in {failed:.0%} all fail",
        meaning="In a group of equal rewards only the number of turns is compared, and the reward stays flat."
        if evidence.prefers_short_episodes
        else "A group of equal rewards has advantage 0. The loss is then 0, and the reward stays flat.",
        change=f"take groups of {size} (rollout.group_size) and more scenarios until {wanted} groups are informative "
        "(rollout.informative_groups); where all fail, add partial credit (checks)",
        command=evidence.train(f"rollout.group_size={size}", f"rollout.informative_groups={wanted}"),
    )


def entropy_collapse(evidence: RunEvidence) -> Diagnosis | None:
    """Entropy that is nearly gone before the task is solved."""
    values = evidence.series(lambda iteration: iteration.entropy)
    if len(values) < LEAST_ITERATIONS or evidence.is_solved:
        return None
    latest = fmean(values[-WINDOW:])
    if latest >= COLLAPSED * values[0]:
        return None
    step, _, smaller = evidence.scaled_step(1 / 3)
    return Diagnosis(
        kind="entropy_collapse",
        certainty="likely",
        measured=f"the entropy fell from {values[0]:.3g} to {latest:.3g} nats per token "
        f"(bound {COLLAPSED:.0%} of the first)",
        meaning="The samples of a group are nearly the same reply, so the policy does not try better ones any more.",
        change=f"add training.entropy_coefficient 0.01, or lower {step} to {smaller:g}",
        command=evidence.train("training.entropy_coefficient=0.01"),
    )


def entropy_growth(evidence: RunEvidence) -> Diagnosis | None:
    """Entropy that grows while the run does not learn."""
    values = evidence.series(lambda iteration: iteration.entropy)
    if len(values) < LEAST_ITERATIONS or evidence.is_learning or evidence.is_solved:
        return None
    latest = fmean(values[-WINDOW:])
    if latest < GROWN * values[0] or latest < values[0] + GROWN_NATS:
        return None
    step, _, smaller = evidence.scaled_step(1 / 3)
    bonus = float(evidence.setting("training.entropy_coefficient", 0.0))
    return Diagnosis(
        kind="entropy_growth",
        certainty="likely",
        measured=f"the entropy rose from {values[0]:.3g} to {latest:.3g} nats per token (bound {GROWN:g} times)",
        meaning="The policy becomes more random, so what it has learned is lost among other replies.",
        change=f"set training.entropy_coefficient to 0 (it is {bonus:g})"
        if bonus
        else f"lower {step} to {smaller:g}, or set training.beta to 0.01",
        command=evidence.train("training.entropy_coefficient=0" if bonus else f"{step}={smaller:g}"),
    )


def input_agnostic(evidence: RunEvidence) -> Diagnosis | None:
    """Replies that do not depend on the scenario (RAGEN-2, arXiv 2604.06268)."""
    dependence = reply_dependence(evidence.last)
    if dependence is None or evidence.is_solved or not dependence.is_independent:
        return None
    prompts = {t.scenario_id: prompt_of(t) for t in evidence.last}
    if len(set(prompts.values())) < ALIKE_PROMPTS * len(prompts):
        return None
    return Diagnosis(
        kind="input_agnostic",
        certainty="likely",
        measured=f"the mutual information of scenario and reply is {dependence.nats:.2g} nats per token, no more than "
        "if the replies were shuffled among the scenarios (level 5%)",
        meaning="The replies are the same mixture whatever the user asks, although they may look varied.",
        change="check that the scenario reaches the prompt; then train on groups whose rewards differ most "
        "(rollout.informative_groups), and lower training.beta and training.entropy_coefficient",
        command=evidence.show(),
    )


CHECKS = (
    solved_at_start, no_success, identical_replies, input_agnostic, entropy_collapse, entropy_growth,
    uninformative_groups,
)  # fmt: skip
