"""A real rollout of the embedded model on disk, as the train stage finds it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from grpo.artifacts import Artifact
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.learner.checkpoints import save_base
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.rewards.catalog import make_reward
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
    trajectories = tuple(score(play_desk(policy, config, scenarios=6, group_size=4), make_reward(config.reward)))
    write_trajectories(folder / "scored.parquet", trajectories, provenance={})
    return DeskRollout(folder / "base", folder / "scored.parquet", trajectories, config)
