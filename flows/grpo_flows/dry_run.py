"""Dry run: the stages that are in the cache, and the episodes, tokens and memory that a run needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from grpo.artifacts import ArtifactStore
from grpo.config.environments import PythonEnvironmentSettings
from grpo.config.pipeline import PipelineConfig
from grpo.config.served_log import ServedLogSettings
from grpo.identity.code import external_digests
from grpo.learner.estimates.memory import MemoryEstimate, memory_estimate
from grpo.learner.estimates.model_sizes import ModelSizes
from grpo.learner.estimates.process_memory import ProcessMemory, process_memory
from grpo.learner.estimates.servers_memory import ServersMemory, servers_memory
from grpo.learner.estimates.time import estimate_seconds, measured_flops
from grpo.policy.context import describe_context
from grpo.policy.weights.sources import ModelPlan, model_plan
from grpo.preflight.facts import Facts
from grpo.reads.names import is_read, shown
from grpo.tables import open_parquet
from grpo_flows.pipeline import (
    base_policy,
    prepare_scenarios,
    settle_gates,
    starting_policies,
    training_steps,
)
from grpo_flows.steps.rollouts import collect_heldout
from grpo_local import preflight
from grpo_tasks.execution.results import StageResult, stages_with_results
from grpo_tasks.execution.stage import Call, executed_by
from grpo_tasks.load_base import BaseCheckpoint, Checkpoint
from grpo_tasks.rollout import RolloutResult
from grpo_tasks.split import SplitResult
from grpo_tasks.write_served import with_written_data

R = TypeVar("R", bound=StageResult)

_MEASURED = 8
"""Number of the last shards from which the mean number of completion tokens is computed."""
_ONCE = ("evaluate", "gate", "register")


class Plan(BaseModel):
    """Base of plans."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedStage(Plan):
    """One stage of the run."""

    name: str
    runs: int
    """Number of runs, if dynamic sampling takes as many rounds as it may."""
    cached: int
    """Runs that are known to be in the cache."""
    rest: str
    """State of the other runs."""


class Episodes(Plan):
    """Upper bounds on the episodes."""

    train: int
    heldout: int | None
    """Episodes of champion, candidate and each policy before GRPO together. None if the split is not known."""

    @property
    def all(self) -> int:
        """Training and held-out episodes, as far as they are known."""
        return self.train + (self.heldout or 0)


class DryRun(Plan):
    """Result of a dry run, see the module."""

    stages: tuple[PlannedStage, ...]
    scenarios: tuple[int, int] | None
    """Training and held-out scenarios. None if sources are too large to be read, or on a hub."""
    counted: int | None
    """Scenarios that were read for this plan, if the split is not in the cache."""
    episodes: Episodes
    max_completion_tokens: int
    """Upper bound on the completion tokens of an episode."""
    mean_completion_tokens: float | None
    """Mean over the cached rollouts of this config."""
    model: ModelPlan
    """Base model: its pinned address, size, and what would be fetched."""
    forward_path: str | None
    """Forward path of the model, and its errors. None if load_base is not in the cache."""
    chat_format: str
    """Forms in which tools, calls and unusual conversations are rendered."""
    context: str
    """Tokens that the model reads, and why they are fewer than its config states."""
    memory: MemoryEstimate
    process_memory: ProcessMemory | None = None
    """Memory of each process of an update, if it runs in several."""
    servers: ServersMemory | None = None
    """Memory of each rollout server, if the run starts them."""
    seconds: float
    """Estimated time of what is not in the cache, from the mean of the completion tokens if it is known, and otherwise
    from their upper bound."""
    reads: tuple[str, ...] = ()
    """Files, folders and variables that the config declares, or that code of one's own has read so far."""


class NotCached(Exception):
    """A stage is not in the cache, so that the inputs of the stages after it are unknown."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"{stage} is not in the cache")
        self.stage = stage


class CacheLookup:
    """Executor that returns cached results, or raises `NotCached`, see `grpo_tasks.execution.stage.Executor`."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        """Cached runs of each stage."""
        self.results: list[StageResult] = []

    def run(self, calls: Sequence[Call[R]]) -> list[R]:
        """Cached results of all calls. If one shard is not cached, the cached ones are still counted."""
        stage = calls[0].stage
        cached = [result for call in calls if (result := stage.find(call.inputs)) is not None]
        self.hits[stage.name] += len(cached)
        self.results.extend(cached)
        if len(cached) < len(calls):
            raise NotCached(stage.name)
        return cached

    def start(self, call: Call[R]) -> Callable[[], R]:
        """Cached result of one call."""
        (result,) = self.run([call])
        return lambda: result


def dry_run(config: PipelineConfig) -> DryRun:
    """Follow a run through the cache as far as it goes. Computes, writes and starts nothing.

    If the model is on a hub, its config and tokenizer are fetched, and no weights. Only the headers of weights are
    read. Raises the faults that `grpo.preflight` finds.
    """
    config, lookup = preflight.check(config), CacheLookup()
    with executed_by(lookup):
        split, missing = _follow(config)
    with Facts(config) as facts:
        sizes, chat_format = facts.sizes(), str(facts.renderer().chat_format)
        teacher = facts.teacher_sizes()
        scenarios, counted = _scenarios(facts, split)
    episodes = _episodes(config, scenarios)
    stages = _stages(config, lookup, missing)
    mean, memory = _mean_completion_tokens(config, lookup), _memory(config, sizes, episodes, teacher)
    return DryRun(
        stages=stages,
        scenarios=scenarios,
        counted=counted,
        episodes=episodes,
        max_completion_tokens=_max_completion_tokens(config),
        mean_completion_tokens=mean,
        model=model_plan(config.policy.model),
        forward_path=next(
            (result.forward_path for result in lookup.results if isinstance(result, BaseCheckpoint)), None
        ),
        chat_format=chat_format,
        context=describe_context(sizes.config),
        memory=memory,
        process_memory=process_memory(memory, sizes, config.training, dtype=config.policy.dtype, teacher=teacher)
        if config.training.workers > 1
        else None,
        servers=_servers(config, sizes, episodes),
        seconds=_seconds(config, stages, episodes, memory, tokens=mean or _max_completion_tokens(config)),
        reads=_reads(config, lookup),
    )


def _scenarios(facts: Facts, split: SplitResult | None) -> tuple[tuple[int, int] | None, int | None]:
    """Training and held-out scenarios. If the split is not in the cache, the sources are read and split here."""
    if split is not None:
        return (split.train, split.heldout), None
    sample, parts = facts.sample(), facts.split()
    counted = None if sample is None else len(sample.scenarios)
    return (None if parts is None else (len(parts.train), len(parts.heldout))), counted


def _seconds(
    config: PipelineConfig,
    stages: Sequence[PlannedStage],
    episodes: Episodes,
    memory: MemoryEstimate,
    *,
    tokens: float,
) -> float:
    left = {stage.name: 1 - stage.cached / stage.runs for stage in stages}
    generated = tokens * (episodes.train * left.get("rollout_window", left["rollout"]))
    generated += tokens * (episodes.heldout or 0) * left["rollout"]
    return estimate_seconds(
        parameters=memory.parameters,
        generated=generated,
        trained=tokens * episodes.train * left["train"] * config.training.epochs,
        stages=sum(stage.runs - stage.cached for stage in stages),
        frozen_passes=(config.training.beta > 0) + (config.training.distillation is not None),
        flops=measured_flops(),
    )


def _reads(config: PipelineConfig, lookup: CacheLookup) -> tuple[str, ...]:
    declared = {name for name in external_digests([config]) if is_read(name)}
    recorded = {shown(name) for result in lookup.results for name in result.reads}
    return tuple(sorted(declared | recorded))


def _max_completion_tokens(config: PipelineConfig) -> int:
    """Most tokens that are generated in an episode.

    For an environment of the user's own it is `max_context`, because only the environment knows its number of turns.
    """
    if isinstance(config.environment, PythonEnvironmentSettings):
        return config.rollout.max_context
    return min(config.environment.max_turns * config.rollout.max_new_tokens, config.rollout.max_context)


def _memory(
    config: PipelineConfig, sizes: ModelSizes, episodes: Episodes, teacher: ModelSizes | None
) -> MemoryEstimate:
    return memory_estimate(
        sizes,
        config.training,
        # vLLM has its own bound, and servers their own memory
        episodes=_in_flight(config, episodes) if config.rollout.backend == "transformers" else 0,
        max_context=config.rollout.max_context,
        dtype=config.policy.dtype,
        teacher=teacher,
        keeps_parent=config.rollout.overlaps_updates,
        checks_earlier_version=config.rollout.mode == "continuous" and config.rollout.backend == "servers",
    )


def _servers(config: PipelineConfig, sizes: ModelSizes, episodes: Episodes) -> ServersMemory | None:
    started, concurrent = config.rollout.started_servers, _in_flight(config, episodes)
    if started is None:
        return None
    return servers_memory(sizes, started.count, episodes=concurrent, max_context=config.rollout.max_context)


def _follow(config: PipelineConfig) -> tuple[SplitResult | None, tuple[str, ...]]:
    """The split if it is cached, and the stages that have to be computed before more is known."""
    missing: list[str] = []
    split: SplitResult | None = None
    base: Checkpoint | None = None
    try:
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        split = data.split
        config = settle_gates(config, data)
    except NotCached as miss:
        missing.append(miss.stage)
    try:
        config = with_written_data(config)
        base = starting_policies(config, base_policy(config.policy, config.store))[-1]
    except NotCached as miss:
        missing.append(miss.stage)
    if split is None or base is None:
        return split, tuple(missing)
    try:
        policy = base
        for step in training_steps(config, split, base):
            policy = step.policy
        collect_heldout(config, policy.checkpoint, split)
    except NotCached as miss:
        missing.append(miss.stage)
    return split, tuple(missing)


def _episodes(config: PipelineConfig, scenarios: tuple[int, int] | None) -> Episodes:
    rollout, training = config.rollout, config.training
    count = min(rollout.scenarios, scenarios[0]) if scenarios else rollout.scenarios
    rounds = rollout.max_rounds if rollout.informative_groups else 1
    return Episodes(
        train=training.iterations * rounds * count * rollout.group_size,
        heldout=_heldout_rollouts(config) * scenarios[1] * config.evaluation.samples if scenarios else None,
    )


def _heldout_rollouts(config: PipelineConfig) -> int:
    """Number of policies that play the held-out scenarios, if no version has ever been promoted."""
    return 2 + len(_stages_before_grpo(config))


def _stages_before_grpo(config: PipelineConfig) -> list[str]:
    stages = {"sft": config.sft, "dpo": config.dpo}
    return [name for name, settings in stages.items() if settings is not None]


def _in_flight(config: PipelineConfig, episodes: Episodes) -> int:
    """Upper bound on the concurrent episodes of all processes that generate."""
    return config.rollout.concurrent_episodes(
        train=episodes.train // config.training.iterations,
        heldout=(episodes.heldout or 0) // _heldout_rollouts(config),
    )


def _served(config: PipelineConfig) -> int:
    """Number of serving logs that `sft` and `dpo` read."""
    data = (config.sft and config.sft.demonstrations, config.dpo and config.dpo.pairs)
    return sum(isinstance(source, ServedLogSettings) for source in data)


def _stages(config: PipelineConfig, lookup: CacheLookup, missing: tuple[str, ...]) -> tuple[PlannedStage, ...]:
    iterations, tuning = config.training.iterations, _stages_before_grpo(config)
    rollouts = iterations * (config.rollout.max_rounds if config.rollout.informative_groups else 1)
    scored = rollouts + _heldout_rollouts(config)
    windows = {"rollout_window": iterations} if config.rollout.mode == "continuous" else {}
    runs = {
        **dict.fromkeys(("ingest", "validate", "split"), 1),
        "load_base": 1 if config.training.teacher is None else 2,
        **windows,
        "rollout": (_heldout_rollouts(config) if windows else scored) * config.rollout.shards,
        "score": scored,
        **({"curriculum": iterations - 1} if config.rollout.curriculum is not None and iterations > 1 else {}),
        "train": iterations,
        **({"write_served": served} if (served := _served(config)) else {}),
        **dict.fromkeys(tuning, 1),
        **({"evaluate_policy": _heldout_rollouts(config)} if tuning else {}),
        **dict.fromkeys(_ONCE, 1),
    }

    known = stages_with_results(ArtifactStore(config.store))

    def rest(name: str, cached: int) -> str:
        if cached == runs[name]:
            return ""
        if not missing:
            return "unknown: depends on the current champion"
        if name not in known or (name in missing and runs[name] == 1):
            return "computed"
        if name in missing:
            return "one is computed, the others depend on it"
        return f"unknown until {' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} run"

    return tuple(
        PlannedStage(name=name, runs=count, cached=lookup.hits[name], rest=rest(name, lookup.hits[name]))
        for name, count in runs.items()
    )


def _mean_completion_tokens(config: PipelineConfig, lookup: CacheLookup) -> float | None:
    """Mean completion tokens of an episode over the last cached shards."""
    store = ArtifactStore(config.store)
    shards = [result for result in lookup.results if isinstance(result, RolloutResult)][-_MEASURED:]
    tokens = episodes = 0
    for shard in shards:
        for batch in open_parquet(store.path(shard.rollout)).iter_batches(columns=["loss_mask"]):
            tokens += sum(batch.column("loss_mask").flatten().to_pylist())
            episodes += batch.num_rows
    return tokens / episodes if episodes else None
