"""A real rollout of the shipped model on disk, as the train stage finds it."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
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


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of a checkpoint by name."""
    return load_file(folder / "model.safetensors")


def largest_difference(left: Path, right: Path) -> float:
    """Largest difference of a weight of two checkpoints."""
    first, second = weights(left), weights(right)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def share_of_the_step(left: Path, right: Path, start: Path) -> float:
    """Distance of two policies (2-norm) as a share of the step that the first has made from `start`.

    Adam divides a gradient by its own size. Where that is below Adam's epsilon (1e-8), the order of additions
    alone moves a weight by percents of the learning rate: no bound holds for the largest weight, one does for all.
    """
    first, second, base = weights(left), weights(right), weights(start)
    apart = sum(float((first[name] - second[name]).square().sum()) for name in first)
    step = sum(float((first[name] - base[name]).square().sum()) for name in first)
    return (apart / step) ** 0.5


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """Let the processes of an update wait for that of the next test: only an equal environment may have them."""
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
