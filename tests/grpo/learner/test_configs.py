"""Every shipped config of the support desk makes an update from a real rollout of the shipped model."""

from __future__ import annotations

from pathlib import Path
from statistics import pstdev

import pytest

from grpo.config.pipeline import PipelineConfig, load_config
from grpo.learner.checkpoints import read_state
from grpo.learner.update import update
from grpo.tables import write_trajectories
from grpo.trajectories import Trajectory
from tests.grpo.learner.conftest import BASE, ROOT, DeskRollout

CONFIGS = {
    path.stem: load_config(path)
    for path in sorted((ROOT / "data" / "configs").glob("*.yaml"))
    if path.stem not in ("retrain", "tune")  # configs of other kinds
    and load_config(path).environment.kind == "support_desk"
}


@pytest.fixture(scope="module")
def scored(desk_rollout: DeskRollout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two groups of the rollout whose rewards differ most: what an update needs to move the policy."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in desk_rollout.trajectories:
        groups.setdefault(trajectory.scenario_id, []).append(trajectory)
    varied = sorted(groups.values(), key=lambda group: -pstdev(trajectory.terminal_reward or 0 for trajectory in group))
    path = tmp_path_factory.mktemp("groups") / "scored.parquet"
    write_trajectories(path, [*varied[0], *varied[1]], provenance={})
    return path


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_update_changes_the_policy(config: PipelineConfig, desk_rollout: DeskRollout, scored: Path, tmp_path: Path):
    """By the config's own settings, from scored Parquet to a checkpoint."""
    base, target = desk_rollout.base, tmp_path / "one"
    result = update([scored], base, base, target, config.training, seed=config.seed, iteration=0, base_artifact=BASE)
    metrics = result.metrics
    assert result.changed
    assert metrics.tokens > 0
    assert metrics.gradient_norm > 0
    assert read_state(target).policy_hash != read_state(base).policy_hash
