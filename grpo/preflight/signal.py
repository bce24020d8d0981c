"""Checks that rewards can teach: they may differ between episodes, and algorithm, credit and engine can use them.

They look at the settings and at the played episodes, in which a script replies. An environment that gives the rewards
of its turns to a scripted agent in a form that the update refuses gives them to a model in the same form.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpo.errors import ConfigError, DataError
from grpo.preflight.facts import Facts

_CONSTANT = "constant"


def rewards_differ(facts: Facts) -> Iterator[Exception]:
    """Refuse rewards that are the same for every episode, unless something else trains, or they are all constant."""
    training, rewards = facts.given.training, facts.given.reward
    if any(part.weight and part.kind != _CONSTANT for part in rewards):
        return
    if all(part.weight and part.kind == _CONSTANT for part in rewards):
        return  # a control, in which nothing may be learned
    if training.distillation is not None or training.overlong_limit is not None:
        return
    played = facts.episodes()
    if played and not any(trajectory.turn_rewards or trajectory.stop == "failed" for trajectory in played):
        names = ", ".join(f"{part.object or part.kind} (weight {part.weight:g})" for part in rewards)
        yield ConfigError(
            f"reward: {names} gives every episode the same reward, so that there is nothing to learn. Add a reward "
            "that differs, with a weight that is not 0"
        )


def turn_rewards(facts: Facts) -> Iterator[Exception]:
    """Refuse rewards of turns that the algorithm or the assignment of credit cannot use."""
    rewarded = [played for played in facts.episodes() if played.turn_rewards and played.stop != "failed"]
    if not rewarded:
        return
    import numpy as np

    from grpo.algorithms.catalog import ALGORITHMS
    from grpo.learner.credit_assignment import one_per_turn  # imports torch

    training = facts.given.training
    by_turn = training.credit_assignment != "trajectory" or ALGORITHMS[training.algorithm].critic
    for trajectory in rewarded:
        given = trajectory.turn_rewards
        if training.algorithm == "maxrl" and sum(given) < 0:
            yield ConfigError(
                f"training.algorithm maxrl divides by the mean reward of a group, and environment "
                f"{facts.given.environment.kind} gave a scripted reply in scenario {trajectory.scenario_id} the turn "
                f"rewards {', '.join(f'{reward:g}' for reward in given)}. Use rewards of 0 and more, or set another "
                "algorithm"
            )
            return
        if by_turn:
            try:
                turns = sum(turn.message.role == "assistant" for turn in trajectory.turns)
                one_per_turn(trajectory, np.array(given), turns)
            except DataError as error:
                yield ConfigError(f"{error}. A script replied in this episode")
                return


def entropy_in_one_pass(facts: Facts) -> Iterator[Exception]:
    """Refuse entropy settings of engine trl if a rollout takes several passes even with replies of one token."""
    training, rollout = facts.given.training, facts.given.rollout
    if training.engine != "trl" or not (training.entropy_coefficient or training.top_entropy_quantile < 1):
        return
    prompts = [int(trajectory.loss_mask.argmax()) for trajectory in facts.episodes() if trajectory.loss_mask.any()]
    if not prompts:
        return
    parts = facts.split()
    scenarios = rollout.scenarios if parts is None else min(rollout.scenarios, len(parts.train))
    episodes, shortest = scenarios * rollout.group_size, min(prompts)
    needed = episodes * (shortest + 1)
    if needed > training.microbatch_tokens:
        yield ConfigError(
            f"engine trl measures entropy pass by pass, and {episodes} episodes of {shortest} tokens and more do not "
            f"fit into training.microbatch_tokens {training.microbatch_tokens}. Raise it above {needed}, or leave "
            "entropy_coefficient and top_entropy_quantile out"
        )
