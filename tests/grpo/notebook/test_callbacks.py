from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import ConfigError
from grpo.notebook.callbacks import CheckpointCallback, EarlyStoppingCallback, TrainingControl, flat_metrics
from tests.grpo.notebook.test_diagnostics import record


@pytest.mark.parametrize(
    ("rewards", "stopped_at"),
    [
        ([0.1, 0.2, 0.2, 0.15], 3),  # the best is .2; two iterations without a rise
        ([0.1, 0.1, 0.2, 0.2, 0.1], 4),  # the rise at 2 begins the count anew
        ([0.1, 0.2, 0.3, 0.4], None),
        ([None, None], 1),
    ],
)
def test_early_stopping_stops_at_the_right_iteration(rewards: list[float | None], stopped_at: int | None):
    """Patience 2."""
    stopping, control = EarlyStoppingCallback(patience=2), TrainingControl(10)
    seen = None
    for index, reward in enumerate(rewards):
        stopping.on_iteration_end(record(index, rollout={"reward": reward}), Path(), control)
        if seen is None and control.stop_reason is not None:
            seen = index
    assert seen == stopped_at


def test_a_rise_below_min_delta_does_not_count():
    """From .5 to .54 with min_delta .05."""
    stopping, control = EarlyStoppingCallback(patience=1, min_delta=0.05), TrainingControl(10)
    for index, reward in enumerate((0.5, 0.54)):
        stopping.on_iteration_end(record(index, rollout={"reward": reward}), Path(), control)
    assert control.stop_reason == "the reward has not risen above 0.5 for 1 iterations"


def test_a_patience_of_zero_is_refused():
    """It would stop before the first iteration."""
    with pytest.raises(ConfigError, match="patience 0"):
        EarlyStoppingCallback(patience=0)


def test_checkpoints_are_copied_and_the_last_ones_stay(tmp_path: Path):
    """Every second of six iterations, the last two of three."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    keeping = CheckpointCallback(tmp_path / "kept", every=2, keep=2)
    for index in range(6):
        (checkpoint / "weights").write_text(str(index), encoding="utf-8")
        keeping.on_iteration_end(record(index), checkpoint, TrainingControl(6))
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["checkpoint-4", "checkpoint-6"]
    assert (tmp_path / "kept" / "checkpoint-4" / "weights").read_text(encoding="utf-8") == "3"


def test_an_incomplete_copy_is_replaced(tmp_path: Path):
    """The partial copy of a killed process is removed."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "weights").write_text("new", encoding="utf-8")
    left = tmp_path / "kept" / ".checkpoint-1.partial"
    left.mkdir(parents=True)
    (left / "half").write_text("old", encoding="utf-8")
    CheckpointCallback(tmp_path / "kept").on_iteration_end(record(0), checkpoint, TrainingControl(1))
    assert [path.name for path in (tmp_path / "kept").rglob("*") if path.is_file()] == ["weights"]


def test_flat_metrics_omit_missing_values():
    """Without verified success it has no metric; a component has its own name."""
    metrics = flat_metrics(record(rollout={"success": None, "components": {"checks": 0.25}}, loss=0.5))
    assert "rollout/success" not in metrics
    assert (metrics["reward/checks"], metrics["update/loss"], metrics["rollout/reward"]) == (0.25, 0.5, 0.5)
