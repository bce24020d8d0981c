"""The quickstart's model, config and episodes, for the benchmarks of rollout and learner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grpo.config.pipeline import PipelineConfig, load_config
from grpo.environments.catalog import make_environment
from grpo.learner.batch import Sample, build_batch, make_minibatches
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.score import score
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import group
from tests.benchmarks.measure import use_all_cores
from tests.doubles import play_desk
from tests.places import ROOT

SCENARIOS, SIBLINGS = 32, 8
CONFIG = "data/configs/quickstart.yaml"
MODEL = ROOT / "data" / "models" / "desk_clerk"


def quickstart() -> PipelineConfig:
    """The config that ships."""
    return load_config(ROOT / CONFIG)


def desk_policy() -> TransformersPolicy:
    """The shipped model, on all cores."""
    use_all_cores()
    return load(MODEL)


def step_samples(policy: TransformersPolicy, config: PipelineConfig) -> list[Sample]:
    """Batch of the first optimizer step of a run: informative groups of eight samples."""
    played = play_desk(policy, config, scenarios=SCENARIOS, group_size=SIBLINGS)
    scored = list(score(played, make_composite_reward(config.reward)))
    batch = build_batch(group(scored), config.training, policy_hash=policy.hash)
    return make_minibatches(batch.groups, config.training, rng=np.random.default_rng(0))[0]


def heldout_success(policy: TransformersPolicy, config: PipelineConfig, heldout: Sequence[Scenario]) -> float:
    """Share of held-out episodes that succeed, as a run's evaluation plays and counts them."""
    desk = make_environment(config.environment)
    played = collect(
        heldout,
        policy,
        desk,
        Renderer(policy.tokenizer, tools=desk.tools),
        config.rollout,
        group_size=config.evaluation.samples,
        temperature=config.evaluation.temperature,
        run_seed=config.seed,
        iteration="heldout",
    )
    return float(np.mean([bool(trajectory.outcome and trajectory.outcome.success) for trajectory in played]))
