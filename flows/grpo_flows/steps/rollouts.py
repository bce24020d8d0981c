"""Rollouts of an iteration or of the held-out scenarios, and their scores.

collect_rollouts    rollout (in shards) → score, in as many rounds as dynamic sampling takes
collect_window      rollout_window → score, of a continuous rollout
collect_heldout     rollout (in shards) → score
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from grpo.artifacts import Artifact
from grpo.config.pipeline import PipelineConfig
from grpo.config.rollout import RolloutSettings
from grpo.rewards.rollout_summary import RolloutSummary
from grpo_tasks.continuous import end_rollout
from grpo_tasks.curriculum import CurriculumResult
from grpo_tasks.execution.stage import run_all
from grpo_tasks.rollout import rollout
from grpo_tasks.rollout_request import RolloutRequest
from grpo_tasks.rollout_window import WindowResult, rollout_window
from grpo_tasks.score import ScoreResult, score
from grpo_tasks.split import SplitResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """The scored rounds of one iteration."""

    rounds: tuple[ScoreResult, ...]
    window: WindowResult | None = None
    """Window of a continuous rollout, of which the only round was scored."""

    @property
    def scored(self) -> tuple[Artifact, ...]:
        """The episodes, one artifact per round."""
        return tuple(result.scored for result in self.rounds)

    @property
    def summary(self) -> RolloutSummary:
        """Means over all rounds."""
        return reduce(RolloutSummary.joined, (result.summary for result in self.rounds))


def collect_rollouts(
    config: PipelineConfig,
    policy: Artifact,
    split: SplitResult,
    *,
    iteration: int,
    past: CurriculumResult | None = None,
) -> Rollouts:
    """Roll out and score one training iteration. `past` is the curriculum after the iteration before it."""

    def collect(round: int) -> ScoreResult:
        return _collect(config, policy, split, part=iteration, round=round, past=past)

    return dynamic_sampling(collect, config.rollout, scenarios=split.train)


def collect_heldout(config: PipelineConfig, policy: Artifact, split: SplitResult) -> ScoreResult:
    """Roll out and score the held-out scenarios."""
    return _collect(config, policy, split, part="heldout", round=0)


def collect_window(
    config: PipelineConfig,
    policy: Artifact,
    split: SplitResult,
    *,
    iteration: int,
    previous: Rollouts | None,
) -> Rollouts:
    """Take the window of an iteration from the continuous rollout, and score it.

    `policy` is the checkpoint that the window is trained on.
    """
    result = rollout_window(
        request=_request(config, policy, split),
        iteration=iteration,
        iterations=config.training.iterations,
        store=config.store,
        previous=None if previous is None or previous.window is None else previous.window.rollout,
    )
    collected = Rollouts(rounds=(), window=result)
    try:
        end_window(config, previous)  # another process may have written the window
        return replace(collected, rounds=(_score(config, (result.rollout,), split.scenarios),))
    except BaseException:
        end_window(config, collected)
        raise


def end_window(config: PipelineConfig, rollouts: Rollouts | None) -> None:
    """End the continuous rollout that goes on after the last window of a run, if there is one in this process."""
    if rollouts is not None and rollouts.window is not None:
        end_rollout(config.store, rollouts.window.rollout)


def dynamic_sampling(collect: Callable[[int], ScoreResult], settings: RolloutSettings, *, scenarios: int) -> Rollouts:
    """Collect one round, and further ones while too few groups are informative.

    It ends after `max_rounds`, or when all scenarios were rolled out: all of the split, or, in a curriculum with closed
    levels, all that are open, so that a round has none. This is the dynamic sampling of DAPO (arXiv
    2503.14476, eq. 11), except that the learner drops the groups of zero advantage.
    """
    rollouts = Rollouts(rounds=(collect(0),))
    while (
        rollouts.summary.informative_groups < (settings.informative_groups or 0)
        and len(rollouts.rounds) < settings.max_rounds
        and rollouts.summary.groups < scenarios
        and rollouts.rounds[-1].summary.groups > 0
    ):
        rollouts = Rollouts(rounds=(*rollouts.rounds, collect(len(rollouts.rounds))))
    return rollouts


def _collect(
    config: PipelineConfig,
    policy: Artifact,
    split: SplitResult,
    *,
    part: int | Literal["heldout"],
    round: int,
    past: CurriculumResult | None = None,
) -> ScoreResult:
    """Roll out one round in shards, and score it."""
    heldout = part == "heldout"
    shards = run_all(
        [
            rollout.bind(
                request=_request(config, policy, split),
                samples=config.evaluation.samples if heldout else config.rollout.group_size,
                temperature=config.evaluation.temperature if heldout else config.rollout.temperature,
                part=part,
                round=round,
                shard=shard,
                store=config.store,
                curriculum=None if past is None else past.curriculum,
            )
            for shard in range(config.rollout.shards)
        ]
    )
    return _score(config, tuple(result.rollout for result in shards), split.scenarios)


def _request(config: PipelineConfig, policy: Artifact, split: SplitResult) -> RolloutRequest:
    return RolloutRequest(
        checkpoint=policy,
        scenarios=split.scenarios,
        split=split.split,
        parts=config.episode_parts,
        settings=config.rollout,
        seed=config.seed,
    )


def _score(config: PipelineConfig, rollouts: tuple[Artifact, ...], scenarios: Artifact) -> ScoreResult:
    return score(
        rollouts=rollouts,
        scenarios=scenarios,
        reward=config.reward,
        judge=config.judge,
        error_budget=config.rollout.error_budget,
        timeout_s=config.rollout.reward_timeout_s,
        store=config.store,
        environment=config.scored_environment,
    )
