"""The triage config's model after fine-tuning, and the episodes of one iteration with it, for the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo.config.pipeline import PipelineConfig, load_config
from grpo.environments.catalog import make_environment
from grpo.learner.checkpoints import save_base
from grpo.learner.offline.fine_tuning import fine_tune
from grpo.policy.catalog import load_weights
from grpo.policy.policy import Policy
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.scenarios.ingest import ingest
from grpo.scenarios.split import split
from grpo.scenarios.table import read_scenarios
from grpo.trajectories import Trajectory
from tests.places import ROOT


def triage_config() -> PipelineConfig:
    """The config of `make real`."""
    return load_config(ROOT / "data" / "configs" / "triage.yaml")


def split_scenarios(config: PipelineConfig) -> tuple[list[Scenario], list[Scenario]]:
    """The scenarios that the pipeline trains on, and those that it holds out."""
    with TemporaryDirectory() as folder:
        table = Path(folder) / "scenarios.parquet"
        ingest(config.scenarios.sources, table, Path(folder) / "quarantine.parquet", max_quarantined_fraction=0.0)
        chosen = split(table, validation_fraction=config.scenarios.validation_fraction, limit=config.scenarios.limit)
        by_id = {scenario.id: scenario for scenario in read_scenarios(table)}
    return [by_id[name] for name in chosen.train], [by_id[name] for name in chosen.heldout]


def triage_scenarios(config: PipelineConfig) -> list[Scenario]:
    """Those of one iteration."""
    return split_scenarios(config)[0][: config.rollout.scenarios]


def fine_tuned(config: PipelineConfig, folder: Path) -> TransformersPolicy:
    """The policy that a run's first rollout is sampled from, written to `folder/start`."""
    assert config.sft is not None
    base, start = folder / "base", folder / "start"
    base.mkdir()
    start.mkdir()
    save_base(load_weights(config.policy.model, chat_template=config.policy.chat_template), base)
    fine_tune(
        base,
        start,
        config.sft,
        parts=config.episode_parts,
        max_tokens=config.training.microbatch_tokens,
        seed=config.seed,
    )
    return load(start)


def play_triage(backend: Policy, config: PipelineConfig, scenarios: Sequence[Scenario]) -> list[Trajectory]:
    """Roll out one iteration's groups."""
    world = make_environment(config.environment)
    return collect(
        scenarios,
        backend,
        world,
        Renderer(backend.tokenizer, tools=world.tools),  # type: ignore[attr-defined]
        config.rollout,
        group_size=config.rollout.group_size,
        temperature=config.rollout.temperature,
        run_seed=config.seed,
        iteration=0,
    )
