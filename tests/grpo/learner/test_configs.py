"""Every shipped config of the support desk makes an update from a real rollout of the embedded model."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.pipeline import PipelineConfig, load_config
from grpo.learner.checkpoints import read_state
from grpo.learner.update import update
from tests.grpo.learner.conftest import BASE, ROOT, DeskRollout

CONFIGS = {
    path.stem: load_config(path)
    for path in sorted((ROOT / "data" / "configs").glob("*.yaml"))
    if path.stem not in ("retrain", "tune")  # configs of other kinds
    and load_config(path).environment.kind == "support_desk"
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_update_changes_the_policy(config: PipelineConfig, desk_rollout: DeskRollout, tmp_path: Path):
    """By the config's own settings, from scored Parquet to a checkpoint."""
    base, target = desk_rollout.base, tmp_path / "one"
    metrics = update(
        [desk_rollout.scored], base, base, target, config.training, seed=config.seed, iteration=0, base_artifact=BASE
    )
    assert metrics.tokens > 0
    assert metrics.gradient_norm > 0
    assert read_state(target).policy_hash != read_state(base).policy_hash
