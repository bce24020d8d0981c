"""Rollout of one shard → Parquet, for training and for held-out evaluation."""

from __future__ import annotations

from functools import partial
from typing import Literal

from grpo.artifacts import Artifact, ArtifactStore
from grpo.environments.episode_parts import make_parts
from grpo.rollout.collect import collect, shard_ids
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_categories, read_scenarios
from grpo.tables import write_trajectories
from grpo_tasks.curriculum import read_curriculum
from grpo_tasks.execution.gpu_slots import holds_gpu_slot
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage
from grpo_tasks.rollout_request import RolloutRequest
from grpo_tasks.split import read_split


class RolloutResult(StageResult):
    """Trajectories of one shard."""

    rollout: Artifact
    episodes: int


@stage
@holds_gpu_slot
def rollout(
    request: RolloutRequest,
    samples: int,
    temperature: float,
    part: int | Literal["heldout"],
    round: int,
    shard: int,
    store: str,
    curriculum: Artifact | None = None,
) -> RolloutResult:
    """Generate `samples` episodes for each scenario of this shard, of iteration `part` or of the held-out scenarios.

    `curriculum` has the successes of earlier iterations, if `request.settings.curriculum` draws the scenarios by them.
    """
    from grpo.learner.inference_backend import make_inference_backend

    artifacts, settings = ArtifactStore(store), request.settings
    splits = read_split(artifacts, request.split)
    table = artifacts.path(request.scenarios) / SCENARIOS_FILE
    ids = shard_ids(
        splits,
        part,
        settings,
        seed=request.seed,
        round=round,
        shard=shard,
        curriculum=read_curriculum(artifacts, curriculum),
        categories=partial(read_categories, table),
    )
    by_id = {s.id: s for s in read_scenarios(table, ids=ids)}
    policy = make_inference_backend(artifacts, request.checkpoint, settings)
    parts = make_parts(request.parts, policy.tokenizer)
    trajectories = collect(
        [by_id[scenario_id] for scenario_id in ids],
        policy,
        parts.environment,
        parts.renderer,
        settings,
        group_size=samples,
        temperature=temperature,
        run_seed=request.seed,
        iteration=part,
        agent=parts.agent,
        trees=None if part == "heldout" else settings.trees,
    )
    with artifacts.new_file("rollout", ".parquet") as new:
        write_trajectories(new.path, trajectories, provenance={"policy": policy.hash, "part": str(part)})
    return RolloutResult(rollout=new.artifact, episodes=len(trajectories))
