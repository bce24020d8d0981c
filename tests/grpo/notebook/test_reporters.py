"""Metrics of a training, read back from the files of TensorBoard, W&B and MLflow."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from grpo.errors import ConfigError, install_command
from tests.grpo.notebook.test_trainer import make_trainer, run
from tests.waiting import until


@pytest.mark.parametrize(("package", "module"), [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")])
def test_a_reporter_that_is_not_installed_is_named(
    package: str, module: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """The error names the extra, and comes before the first rollout."""
    monkeypatch.setitem(sys.modules, module, None)
    trainer = make_trainer(tiny_folder, report_to=package)
    with pytest.raises(ConfigError) as refusal:
        run(trainer)
    assert install_command(package) in str(refusal.value)
    assert trainer.monitor.records == []


def _wandb_history(file: Path) -> list[dict[str, float]]:
    """Rows of a W&B run's own file: a LevelDB log of protobuf records, in blocks of 32 KiB after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, rows, parts = file.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack("<4xHB", data[place : place + 7])
        if place + 7 + length > len(data):  # it is being written
            break
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record, parts = Record.FromString(parts), b""
            if record.HasField("history"):
                items = record.history.item
                rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def test_an_offline_wandb_run_has_the_metrics_of_each_iteration(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Read back from the run's own file: the reward of each iteration, and its place in the series."""
    pytest.importorskip("wandb", reason="wandb is not installed; pip install 'grpo-agent-framework[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")
    trainer = make_trainer(tiny_folder, report_to="wandb", wandb_project="letters")
    rewards = run(trainer)
    [file] = trainer.folder.glob("wandb/offline-run-*/*.wandb")

    def logged() -> dict[float, float]:
        return {row["_step"]: row["rollout/reward"] for row in _wandb_history(file) if "rollout/reward" in row}

    until("W&B's process to write the run", lambda: len(logged()) == len(rewards), patience_s=240)
    assert logged() == pytest.approx(dict(enumerate(rewards, start=1)))


def test_the_event_file_of_tensorboard_has_every_metric(tiny_folder: Path):
    """Read by TensorBoard's own reader; scalars are float32."""
    pytest.importorskip("tensorboard", reason="pip install 'grpo-agent-framework[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make_trainer(tiny_folder, report_to="tensorboard", iterations=2)
    rewards = run(trainer)
    events = EventAccumulator(str(trainer.folder / "tensorboard"))
    events.Reload()
    series = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert [step for step, _ in series["rollout/reward"]] == [1, 2]
    assert [value for _, value in series["rollout/reward"]] == pytest.approx(rewards)
    assert [step for step, _ in series["heldout/reward"]] == [2]
    assert {"update/loss", "rollout/reward_low", "rollout/reward_high"} <= set(series)
    assert series.keys() == set(trainer.history)


def test_an_mlflow_run_has_the_settings_and_every_metric(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a store of SQLite, in the active run where there is one, which stays open."""
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    try:
        mlflow.create_experiment("letters")
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "letters")  # set_experiment would outlive the test
        with mlflow.start_run() as active:
            trainer = make_trainer(tiny_folder, report_to="mlflow", iterations=2)
            rewards = run(trainer)
            assert mlflow.active_run() is not None
        client = mlflow.MlflowClient()
        logged = {
            name: [(metric.step, metric.value) for metric in client.get_metric_history(active.info.run_id, name)]
            for name in client.get_run(active.info.run_id).data.metrics
        }
        assert logged["rollout/reward"] == [(1, pytest.approx(rewards[0])), (2, pytest.approx(rewards[1]))]
        assert logged.keys() == set(trainer.history)
        assert client.get_run(active.info.run_id).data.params["learning_rate"] == "0.02"
        run(make_trainer(tiny_folder, report_to="mlflow", iterations=1))
        assert mlflow.active_run() is None
        assert len(mlflow.search_runs(experiment_names=["letters"])) == 2
    finally:
        mlflow.set_tracking_uri(before)
