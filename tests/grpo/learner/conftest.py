"""A real rollout of the shipped model on disk, as the train stage finds it."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from grpo.artifacts import Artifact
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.training import TrainingSettings
from grpo.learner.checkpoints import save_base
from grpo.learner.metrics import UpdateMetrics
from grpo.learner.update import update
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.score import score
from grpo.tables import write_trajectories
from grpo.trajectories import Trajectory
from tests.doubles import play_desk
from tests.places import DESK_MODEL, ROOT

BASE = Artifact(uri="file:///base", sha256="0" * 64, kind="checkpoint")
"""Base artifact of a checkpoint of adapters."""


def perturbed(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model with a little noise in each weight."""
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return other


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """Let the processes of an update wait for the next test, which takes them if its environment is equal."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.fixture
def policy(tiny_folder: Path) -> TransformersPolicy:
    """The tiny model."""
    return load(tiny_folder)


@dataclass(frozen=True)
class DeskRollout:
    """Checkpoint 0, the scored rollout of it, and the trajectories in it."""

    base: Path
    scored: Path
    trajectories: tuple[Trajectory, ...]
    config: PipelineConfig


@pytest.fixture(scope="session")
def desk_rollout(tmp_path_factory: pytest.TempPathFactory) -> DeskRollout:
    """Four samples of each of six scenarios, scored as the quickstart does."""
    folder = tmp_path_factory.mktemp("desk")
    config = load_config(ROOT / "data" / "configs" / "quickstart.yaml")
    policy = load(DESK_MODEL)
    (folder / "base").mkdir()
    save_base(policy, folder / "base")
    trajectories = tuple(
        score(play_desk(policy, config, scenarios=6, group_size=4), make_composite_reward(config.reward))
    )
    write_trajectories(folder / "scored.parquet", trajectories, provenance={})
    return DeskRollout(folder / "base", folder / "scored.parquet", trajectories, config)


def distilled_update(
    desk: DeskRollout, target: Path, *, teacher: Path | None = None, without_hint: int = 0, **settings: object
) -> UpdateMetrics:
    """Metrics of an update on the desk's rollout, with a hint for all scenarios but the first `without_hint`."""
    plan = TrainingSettings(**{"learning_rate": 5e-4, **settings})  # type: ignore[arg-type]
    ids = list(dict.fromkeys(trajectory.scenario_id for trajectory in desk.trajectories))
    return update(
        [desk.scored],
        desk.base,
        desk.base,
        target,
        plan,
        seed=0,
        iteration=0,
        base_artifact=BASE,
        teacher=teacher,
        hints=dict.fromkeys(ids[without_hint:], "Expected outcome: {}"),
    ).metrics
