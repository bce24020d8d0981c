"""Rollout of one shard → Parquet, for training and for held-out evaluation."""

from __future__ import annotations

from functools import partial
from typing import Literal

from grpo.agents.catalog import make_agent
from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.agent import AnyAgentSettings
from grpo.config.environments import EnvironmentSettings
from grpo.config.renderer import RendererSettings
from grpo.config.rollout import RolloutSettings
from grpo.environments.catalog import make_environment
from grpo.policy.renderer import make_renderer
from grpo.rollout.collect import collect, shard_ids
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_categories, read_scenarios
from grpo.tables import write_trajectories
from grpo_tasks.curriculum import read_curriculum
from grpo_tasks.gpu_slots import holds_gpu_slot
from grpo_tasks.results import StageResult
from grpo_tasks.split import read_split
from grpo_tasks.stage import stage


class RolloutResult(StageResult):
    """Trajectories of one shard."""

    rollout: Artifact
    episodes: int


@stage
@holds_gpu_slot
def rollout(
    scenarios: Artifact,
    split: Artifact,
    checkpoint: Artifact,
    renderer: RendererSettings | None,
    agent: AnyAgentSettings,
    environment: EnvironmentSettings,
    settings: RolloutSettings,
    samples: int,
    temperature: float,
    part: int | Literal["heldout"],
    round: int,
    shard: int,
    seed: int,
    store: str,
    curriculum: Artifact | None = None,
) -> RolloutResult:
    """Generate `samples` episodes for each scenario of this shard, of iteration `part` or of the held-out scenarios.

    `curriculum` has the successes of earlier iterations, if `settings.curriculum` draws the scenarios by them.
    """
    from grpo.learner.inference_backend import make_inference_backend

    artifacts = ArtifactStore(store)
    sides = read_split(artifacts, split)
    table = artifacts.path(scenarios) / SCENARIOS_FILE
    ids = shard_ids(
        sides,
        part,
        settings,
        seed=seed,
        round=round,
        shard=shard,
        curriculum=read_curriculum(artifacts, curriculum),
        categories=partial(read_categories, table),
    )
    by_id = {s.id: s for s in read_scenarios(table, ids=ids)}
    policy = make_inference_backend(artifacts, checkpoint, settings)
    world, player = make_environment(environment), make_agent(agent)
    trajectories = collect(
        [by_id[scenario_id] for scenario_id in ids],
        policy,
        world,
        make_renderer(policy.tokenizer, tools=(*world.tools, *player.tools), settings=renderer),
        settings,
        group_size=samples,
        temperature=temperature,
        run_seed=seed,
        iteration=part,
        agent=player,
    )
    with artifacts.new_file("rollout", ".parquet") as new:
        write_trajectories(new.path, trajectories, provenance={"policy": policy.hash, "part": str(part)})
    return RolloutResult(rollout=new.artifact, episodes=len(trajectories))
