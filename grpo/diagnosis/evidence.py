"""Evidence of a diagnosis: the metrics of a run, and some of its stored episodes.

A run may have stored many thousands of episodes. The first iteration shows the start of the training, and the last
`WINDOW` show its end, so only these and the held-out episodes are read.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from statistics import fmean, stdev
from typing import Any

from grpo.artifacts import store_of
from grpo.config.loading import parse_yaml
from grpo.errors import ArtifactError, DataError, StorageError
from grpo.evaluation.explanation import Diagnosis
from grpo.evaluation.schema import (
    Decision,
    Evaluation,
    Ingestion,
    IterationMetrics,
    ReportDocument,
    RolloutRecord,
)
from grpo.tables import read_trajectories
from grpo.trajectories import Trajectory, TrajectoryGroup, group

WINDOW = 3
"""Iterations at the end of a run that are judged together, because the scenarios of one differ in difficulty."""
MOST_EPISODES = 2048
"""Most episodes that are read of an iteration. The standard error of a share is then at most 1.1 %."""
ENOUGH = 16
"""Least number of episodes of a share. With fewer, a share of 1 in 5 has a standard error above .1."""
LEAST_GROUPS = 4
"""Least number of groups of a share of groups."""
SOLVED = 0.9
"""Verified success from which a training has reached its aim: few groups are then informative, and the entropy is low,
because nothing is left to learn. The health checks in notebooks have the same bound."""
LEAST_ITERATIONS = 4
"""Least number of iterations of a trend. With fewer, the noise between iterations cannot be told from a change."""
RISE = 0.05
"""Least rise of success, or of the reward as a share of its scale, that counts as learning …"""
RISE_ERRORS = 2.0
"""… if it is also this many standard errors above the noise between iterations."""

FINE_TUNED = "sft={demonstrations: {kind: jsonl, path: demonstrations.jsonl}}"
"""Setting of a fine-tuning before GRPO. The file is the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """Metrics, settings and some episodes of a run."""

    name: str
    settings: dict[str, Any]
    """The whole configuration of the run."""
    decision: Decision
    ingestion: Ingestion
    evaluation: Evaluation | None
    iterations: tuple[IterationMetrics, ...]
    first: tuple[Trajectory, ...]
    """Episodes of the first iteration."""
    last: tuple[Trajectory, ...]
    """Episodes of the last iterations, up to `WINDOW`."""
    last_index: int
    """Index of the last iteration with stored episodes."""
    after: tuple[Trajectory, ...]
    """Held-out episodes of the candidate."""
    unread: tuple[str, ...] = ()
    groups: tuple[TrajectoryGroup, ...] = field(init=False)
    """Groups of `last`. A scenario that was drawn in two iterations has two groups."""
    episodes: tuple[Trajectory, ...] = field(init=False)
    """`first` and `last`, without those that are in both."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(groups_of(self.last)))
        unique = {id(trajectory): trajectory for trajectory in (*self.first, *self.last)}
        object.__setattr__(self, "episodes", tuple(unique.values()))

    def setting(self, path: str, default: Any = None) -> Any:
        """Value of `section.key` in the configuration, or the default if an earlier release did not have it."""
        section, _, key = path.rpartition(".")
        part: Any = self.setting(section, {}) if section else self.settings
        value = part.get(key) if isinstance(part, dict) else None
        return default if value is None else value

    def series(self, read: Callable[[IterationMetrics], float | None]) -> list[float]:
        """Values of a metric by iteration, without the iterations in which it was not measured."""
        return [value for value in map(read, self.iterations) if value is not None]

    @property
    def progress(self) -> list[float]:
        """Verified success by iteration, or the mean reward if nothing is verified."""
        successes = self.series(lambda iteration: iteration.success)
        return successes or self.series(lambda iteration: iteration.reward)

    @property
    def window_error(self) -> float:
        """Standard error of the mean of `progress` in the last iterations, over the means of their groups."""
        is_verified = any(t.success is not None for t in self.last)
        means = []
        for g in self.groups:
            values = [float(t.success) for t in g.trajectories if t.success is not None]
            values = values if is_verified else [reward for reward in g.rewards if reward is not None]
            means += [fmean(values)] if values else []
        return stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0

    @property
    def scale(self) -> float:
        """Largest size of a reward, or 1 for success, in which changes of `progress` are measured."""
        if any(iteration.success is not None for iteration in self.iterations):
            return 1.0
        return max((abs(reward) for t in self.episodes if (reward := t.total_reward) is not None), default=0.0) or 1.0

    @property
    def is_learning(self) -> bool:
        """True if success, or the reward if nothing is verified, rose over the run by more than noise."""
        return rise(self.progress) > RISE * self.scale and rise(self.progress) > RISE_ERRORS * rise_error(self.progress)

    @property
    def informative_share(self) -> float:
        """Share of the last groups with rewards that differ, of the groups with two rewards or more."""
        rewards = [[reward for reward in g.rewards if reward is not None] for g in self.groups]
        return share(len(set(known)) > 1 for known in rewards if len(known) > 1)

    @property
    def is_taught(self) -> bool:
        """True if a teacher gives the tokens a gradient, also where the rewards of a group are equal."""
        return bool(self.setting("training.distillation"))

    @property
    def prefers_short_episodes(self) -> bool:
        """True if returns are discounted: if two episodes have the same reward, the one with fewer turns is better."""
        by_state = self.setting("training.credit_assignment") == "state"
        return by_state and float(self.setting("training.state_discount", 1.0)) < 1

    @property
    def is_solved(self) -> bool:
        """True if the last iterations succeed nearly always, or if nothing is verified and the reward rose."""
        value = success_share(self.last)
        return self.is_learning if value is None else value >= SOLVED

    def train(self, *settings: str) -> str:
        """Command that trains again with these settings, under another name, so that both reports stay."""
        changes = "".join(f" --set {shlex.quote(setting)}" for setting in settings)
        return f"grpo train CONFIG{changes} --set name={shlex.quote(self.name[:90])}-retry"

    def scaled_step(self, factor: float) -> tuple[str, float, float]:
        """Setting of the step size, its value, and its value times a factor. For trpo it is the trust region."""
        is_trpo = self.setting("training.algorithm") == "trpo"
        name = "training.trust_region.max_kl" if is_trpo else "training.learning_rate"
        value = float(self.setting(name, 0.0))
        return name, value, float(f"{value * factor:.2g}")

    def check_reward(self, component: str) -> str:
        """Command that tests a component of the reward for exploits, by its `module:name` if it is the user's own."""
        objects = [part.get("object") for part in self.setting("reward", []) if isinstance(part, dict)]
        own = next((name for name in objects if name and name.rpartition(":")[2] == component), component)
        return f"grpo check-reward {shlex.quote(own)}"

    def show(self, outcome: str | None = None) -> str:
        """Command that prints conversations of the last iteration."""
        return f"grpo show {shlex.quote(self.name)} --conversations --iteration {self.last_index}" + (
            f" --outcome {outcome}" if outcome else ""
        )


Check = Callable[[RunEvidence], Diagnosis | None]
"""A check for one cause. Returns None if it does not hold, or if too little was stored to know."""


def read_evidence(document: ReportDocument) -> RunEvidence:
    """Read the evidence of a run. Episodes that are missing or damaged are named in `unread`."""
    unread: list[str] = []
    records = {record.part: record for record in document.rollouts}
    indices = [part for part in records if isinstance(part, int)]

    def read(part: str | int) -> list[Trajectory]:
        try:
            return list(islice(_episodes(records[part]), MOST_EPISODES)) if part in records else []
        except (ArtifactError, DataError, StorageError) as error:
            unread.append(f"{'iteration ' if isinstance(part, int) else ''}{part}: {error}")
            return []

    by_index = {index: read(index) for index in dict.fromkeys([*indices[:1], *indices[-WINDOW:]])}
    if not indices:
        unread.append("no iteration: the report names no stored episodes")
    return RunEvidence(
        name=document.name,
        settings=parse_yaml(document.config, place=f"config of the run {document.name}") or {},
        decision=document.decision,
        ingestion=document.ingestion,
        evaluation=document.evaluation,
        iterations=document.iterations,
        first=tuple(by_index[indices[0]]) if indices else (),
        last=tuple(trajectory for index in indices[-WINDOW:] for trajectory in by_index[index]),
        last_index=indices[-1] if indices else 0,
        after=tuple(read("after")),
        unread=tuple(unread),
    )


def _episodes(record: RolloutRecord) -> Iterator[Trajectory]:
    for artifact in record.scored:
        yield from read_trajectories(store_of(artifact).path(artifact))


def groups_of(trajectories: Sequence[Trajectory]) -> Iterator[TrajectoryGroup]:
    """Groups of the episodes of several iterations. The policy tells apart two groups of the same scenario."""
    by_policy: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_policy.setdefault(trajectory.policy_hash, []).append(trajectory)
    for members in by_policy.values():
        yield from group(members)


def prompt_of(trajectory: Trajectory) -> bytes:
    """Tokens before the first reply, as bytes that can be compared."""
    return trajectory.token_ids[: len(trajectory.token_ids) - len(trajectory.completion_ids)].tobytes()


def success_share(episodes: Iterable[Trajectory]) -> float | None:
    """Share of verified successes, or None if nothing is verified."""
    verified = [t.success for t in episodes if t.success is not None]
    return sum(verified) / len(verified) if verified else None


def share(values: Iterable[bool]) -> float:
    """Share of True, or 0 without any values."""
    known = list(values)
    return sum(known) / len(known) if known else 0.0


def rise(values: Sequence[float]) -> float:
    """Mean of the last third minus mean of the first third: [0 .2 .1 .3 .6 .8] → .7 − .1 = .6"""
    third = max(1, len(values) // 3)
    return sum(values[-third:]) / third - sum(values[:third]) / third if values else 0.0


def rise_error(values: Sequence[float]) -> float:
    """Standard error of `rise`, by the mean squared successive difference (von Neumann 1941), which ignores a trend.

    σ² = mean (v_{k+1} − v_k)² / 2, and the error is √(2σ²/third): [0 .2 .1 .3] → σ² .015, third 1, error .173
    """
    if len(values) < 2:
        return 0.0
    third = max(1, len(values) // 3)
    differences = [after - before for before, after in pairwise(values)]
    return math.hypot(*differences) / math.sqrt(len(differences) * third)  # a reward may be 1e200, whose square is not
