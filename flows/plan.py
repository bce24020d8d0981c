"""What a run would do: how much of it is in the cache, and what the rest will take."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from flows.foresight import Foresight, NotComputed
from flows.run import Run
from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.errors import DataError
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from grpo.learner.memory_estimate import MemoryEstimate, memory_estimate
from grpo.policy.catalog import model_folder
from grpo.tables import open_parquet
from tasks.rollout import RolloutResult

_MEASURED = 8
"""Shards whose episodes are looked at for the mean of their tokens."""
_JUDGING = ("evaluate", "gate", "register")
_EPISODES = ("rollout", "score")
"""Stages that take as long as there are episodes."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PlannedStage(_Part):
    """One stage of the run."""

    name: str
    runs: int
    """How often it is asked for, where further rounds are played at most so often."""
    cached: int
    """Of these, the ones that are known to be in the cache."""
    rest: str
    """What becomes of the others."""


class Episodes(_Part):
    """How many are played, at most; None where the split is not in the cache."""

    train: int
    heldout: int | None
    """By champion and candidate together."""

    @property
    def all(self) -> int:
        """Both, as far as they are known."""
        return self.train + (self.heldout or 0)


class Estimate(_Part):
    """Seconds, from an earlier run of this home."""

    seconds: float
    run: str
    """The earlier run."""
    created: str
    took_s: float
    """How long that one took."""


class Plan(_Part):
    """See the module."""

    stages: tuple[PlannedStage, ...]
    scenarios: tuple[int, int] | None
    """To train on and held out; None where the split is not in the cache."""
    episodes: Episodes
    said_at_most: int
    """Tokens that the policy says in an episode, at most."""
    said: float | None
    """What it says on average, in those rollouts of this very config that are in the cache."""
    memory_estimate: MemoryEstimate
    time: Estimate | None


def plan(config: PipelineConfig, home: Path) -> Plan:
    """Follow a run through the cache as far as it goes, without running, writing or serving anything.

    Raises what the run would raise for sources or a model that are not there.
    """
    foresight = Foresight()
    run = Run(config, foresight, started_at=0.0)
    missing = _follow(run)
    sides = getattr(run, "sides", None)
    known = (sides.train, sides.heldout) if sides is not None else None
    episodes = _episodes(config, known)
    stages = _stages(config, foresight, missing)
    return Plan(
        stages=stages,
        scenarios=known,
        episodes=episodes,
        said_at_most=min(config.environment.max_turns * config.rollout.max_new_tokens, config.rollout.max_context),
        said=_said(config, foresight),
        memory_estimate=memory_estimate(
            model_folder(config.policy.model),
            config.training,
            episodes=_in_flight(config, episodes),
            max_context=config.rollout.max_context,
        ),
        time=_time(config, home, stages, episodes),
    )


def _follow(run: Run) -> tuple[str, ...]:
    """Ask for one stage after the other; returns those that have to be computed before more can be known."""
    missing = []
    for ask in (run.read_scenarios, run.load_base):
        try:
            ask()
        except NotComputed as miss:
            missing.append(miss.stage)
    if missing:
        return tuple(missing)
    try:
        run.improve()
        run.rollouts.heldout(run.candidate.checkpoint)
    except NotComputed as miss:
        return (miss.stage,)
    return ()


def _episodes(config: PipelineConfig, known: tuple[int, int] | None) -> Episodes:
    rollout, training = config.rollout, config.training
    scenarios = min(rollout.scenarios, known[0]) if known else rollout.scenarios
    rounds = rollout.max_rounds if rollout.informative_groups else 1
    return Episodes(
        train=training.iterations * rounds * scenarios * rollout.group_size,
        heldout=2 * known[1] * config.evaluation.samples if known else None,
    )


def _in_flight(config: PipelineConfig, episodes: Episodes) -> int:
    """Episodes that this process plays at once, at most; vLLM plays elsewhere."""
    played = config.rollout
    if played.backend == "vllm":
        return 0
    most = max(episodes.train // config.training.iterations, (episodes.heldout or 0) // 2)
    return min(most, played.concurrency * min(played.shards, played.workers))


def _stages(config: PipelineConfig, foresight: Foresight, missing: tuple[str, ...]) -> tuple[PlannedStage, ...]:
    iterations = config.training.iterations
    plays = iterations * (config.rollout.max_rounds if config.rollout.informative_groups else 1) + 2
    runs = {
        **dict.fromkeys(("ingest", "validate", "split", "base"), 1),
        "rollout": plays * config.rollout.shards,
        "score": plays,
        "train": iterations,
        **dict.fromkeys(_JUDGING, 1),
    }

    def rest(name: str, cached: int) -> str:
        if cached == runs[name]:
            return ""
        if not missing:
            return "unknown until the registry is asked for the champion"
        if name in missing:
            return "computed" if runs[name] == 1 else "one is computed, the others depend on it"
        return f"unknown until {' and '.join(missing)} has run"

    return tuple(
        PlannedStage(name=name, runs=count, cached=foresight.hits[name], rest=rest(name, foresight.hits[name]))
        for name, count in runs.items()
    )


def _said(config: PipelineConfig, foresight: Foresight) -> float | None:
    """Tokens that the policy says in an episode, on average over the last cached shards."""
    store = ArtifactStore(config.store)
    shards = [result for result in foresight.found if isinstance(result, RolloutResult)][-_MEASURED:]
    tokens = episodes = 0
    for shard in shards:
        for batch in open_parquet(store.path(shard.rollout)).iter_batches(columns=["loss_mask"]):
            tokens += sum(batch.column("loss_mask").flatten().to_pylist())
            episodes += batch.num_rows
    return tokens / episodes if episodes else None


class _Earlier(NamedTuple):
    document: ReportDocument
    config: PipelineConfig

    @property
    def episodes(self) -> Episodes:
        """Those that it played; rounds are counted in its report."""
        once = _episodes(
            self.config.model_copy(
                update={"rollout": self.config.rollout.model_copy(update={"informative_groups": None})}
            ),
            (self.document.ingestion.train, self.document.ingestion.heldout),
        )
        rounds = sum(iteration.rounds for iteration in self.document.iterations)
        return once.model_copy(update={"train": once.train // self.config.training.iterations * rounds})


def _time(config: PipelineConfig, home: Path, stages: tuple[PlannedStage, ...], episodes: Episodes) -> Estimate | None:
    """Scale the newest earlier run that computed everything with this model in this world on this machine."""
    for earlier in _earlier(home):
        if not _alike(config, earlier):
            continue
        before = earlier.episodes
        heldout = episodes.heldout if episodes.heldout is not None else before.heldout or 0
        ratios = {
            **dict.fromkeys(_EPISODES, (episodes.train + heldout) / max(1, before.all)),
            "train": episodes.train / max(1, before.train),
        }
        open_share = {stage.name: 1 - stage.cached / stage.runs for stage in stages}
        waited = {stage.name: stage.wall_s for stage in earlier.document.stages}
        start = earlier.document.wall_s - sum(waited.values())
        seconds = start + sum(wall * ratios.get(name, 1.0) * open_share.get(name, 1.0) for name, wall in waited.items())
        return Estimate(
            seconds=seconds,
            run=earlier.document.name,
            created=earlier.document.created,
            took_s=earlier.document.wall_s,
        )
    return None


def _earlier(home: Path) -> list[_Earlier]:
    """Runs that computed all their stages to the end, newest first; reports that cannot be read are passed over."""
    found = []
    for path in home.glob("*/report.json"):
        try:
            document = read_report(path)
            config = PipelineConfig.model_validate(yaml.safe_load(document.config))
        except (DataError, ValidationError):
            continue
        if document.evaluation is not None and not any(stage.cached for stage in document.stages):
            found.append(_Earlier(document, config))
    return sorted(found, key=lambda earlier: earlier.document.created, reverse=True)


def _alike(config: PipelineConfig, earlier: _Earlier) -> bool:
    """Whether an episode and a step cost the same in both."""

    def costs(of: PipelineConfig) -> tuple[object, ...]:
        played, trained = of.rollout, of.training
        return (
            of.policy, of.environment.kind, played.backend, played.max_new_tokens, played.runner, played.staleness,
            trained.algorithm, trained.engine, trained.epochs, trained.lora, trained.precision, trained.processes,
            trained.gradient_checkpointing,
        )  # fmt: skip

    return costs(config) == costs(earlier.config)
