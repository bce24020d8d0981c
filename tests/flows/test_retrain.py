from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.config.dpo import DPOSettings, WrittenPairs
from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import RetrainConfig
from grpo.config.scenarios import ServedSource
from grpo.config.sft import SFTSettings
from grpo.errors import ConfigError, DataError
from grpo.log.writer import ServingLog
from grpo.retraining.reports import RetrainingReport
from grpo.scenarios.sources import read_records
from grpo.storage.home import home
from grpo_flows import retrain
from grpo_flows.retrain import retraining_config, snapshot
from grpo_flows.watch import watch
from tests.grpo.log.fixtures import turn


def test_a_retraining_keeps_the_tags_that_the_pipeline_gives_its_versions(desk_config: dict[str, object]):
    """The owner's tag stays beside the tag of the training data."""
    pipeline = PipelineConfig.model_validate(
        {**desk_config, "registry": {"model_name": "desk", "tags": {"team": "desk"}}}
    )
    run = retraining_config(pipeline, name="again", scenarios="mix.parquet", model=None, tags={"conversations": "5a"})
    assert run.registry.tags == {"team": "desk", "conversations": "5a"}
    assert run.policy == pipeline.policy


def test_a_retraining_is_fine_tuned_on_corrections_instead_of_the_demonstrations_of_its_base(
    desk_config: dict[str, object], tmp_path: Path
):
    """The champion is trained already: the pipeline's own demonstrations are left out, with and without corrections."""
    own, corrections = (
        {"demonstrations": {"kind": "jsonl", "path": str(tmp_path / name)}, "epochs": 2} for name in ("own", "new")
    )
    pipeline = PipelineConfig.model_validate({**desk_config, "sft": own})
    tuning = SFTSettings.model_validate(corrections)
    tuned = retraining_config(pipeline, name="again", scenarios="m.parquet", model="m", tags={}, tuning=tuning)
    plain = retraining_config(pipeline, name="again", scenarios="m.parquet", model="m", tags={})
    first = retraining_config(pipeline, name="again", scenarios="m.parquet", model=None, tags={})
    assert tuned.sft is not None
    assert tuned.sft.demonstrations.path == str(tmp_path / "new")
    assert (plain.sft, first.sft) == (None, pipeline.sft)


def test_dpo_on_corrections_takes_the_place_of_the_base_s_own_tuning(desk_config: dict[str, object], tmp_path: Path):
    """The champion gets the pairs alone; a run from the base keeps its own fine-tuning."""
    own = {"demonstrations": {"kind": "jsonl", "path": str(tmp_path / "own")}}
    pairs = DPOSettings(pairs=WrittenPairs(kind="jsonl", path="pairs"), beta=0.3)
    pipeline = PipelineConfig.model_validate({**desk_config, "sft": own})
    tuned = retraining_config(pipeline, name="again", scenarios="m.parquet", model="m", tags={}, tuning=pairs)
    first = retraining_config(pipeline, name="again", scenarios="m.parquet", model=None, tags={}, tuning=pairs)
    assert (tuned.sft, tuned.dpo) == (None, pairs)
    assert (first.sft, first.dpo) == (pipeline.sft, None)


def test_a_snapshot_of_a_serving_log_names_its_segments(tmp_path: Path):
    """Its end is that of the retraining's start; a source that is pinned stays so."""

    async def serve(name: str) -> None:
        async with ServingLog(tmp_path) as log:
            await log.append(replace(turn(name), conversation_id=name))

    asyncio.run(serve("a"))
    pinned = snapshot(ServedSource(kind="served", path=str(tmp_path)))
    asyncio.run(serve("b"))
    assert snapshot(pinned) == pinned
    assert [record.data["id"] for record in read_records(pinned) if record.data] == ["conversation-a"]


class _Killed(Exception):
    pass


def _retraining(pipeline: dict[str, Any], folder: Path) -> RetrainConfig:
    """A retraining of this run on an empty log."""
    (folder / "short.yaml").write_text(yaml.safe_dump(pipeline))
    return RetrainConfig.model_validate(
        {
            "name": f"again-{folder.name}",
            "pipeline": str(folder / "short.yaml"),
            "conversations": [{"kind": "served", "path": str(folder / "served")}],
            "curation": {"licences": ["own"]},
            "triggers": [{"kind": "age"}],
        }
    )


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
def test_the_watch_refuses_a_retraining_that_could_not_be_done(desk_config: dict[str, Any], tmp_path: Path):
    """Its event would start one: both make the same checks."""
    gates = [{"kind": "improvement", "margin": 0.99}]
    with pytest.raises(ConfigError, match="Hold out"):
        watch(_retraining({**desk_config, "gates": gates}, tmp_path))


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
def test_a_retraining_that_was_interrupted_is_found_by_the_command(
    desk_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The flow begins it with the config that was checked, and the command looks for it before it checks triggers."""
    config = _retraining(desk_config, tmp_path)

    def killed(*arguments: object) -> None:
        raise _Killed

    monkeypatch.setattr(retrain, "_train", killed)
    with pytest.raises(_Killed):
        retrain.retrain(config)
    monkeypatch.setattr(retrain, "check", killed)
    assert retrain.retrain_if_idle(config, config.load_pipeline()) is None
    with pytest.raises(_Killed):  # the flow goes on with it, without checking triggers
        retrain.retrain(config)


def _record(config: RetrainConfig) -> RetrainingReport:
    return RetrainingReport.model_validate_json((home() / config.name / "retraining.json").read_bytes())


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("where", "error", "reason"),
    [
        ("check", RuntimeError("curation broke"), "RuntimeError: curation broke"),
        ("check", ConnectionError("MLflow does not answer"), "ConnectionError: MLflow does not answer"),
        ("check", SystemExit(0), "SystemExit: 0"),
        ("_plan", DataError("no room for the mixture"), "no room for the mixture"),
        ("_train", MemoryError("8 GiB"), "MemoryError: 8 GiB"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value)[:12],
)
def test_every_end_of_a_retraining_is_in_its_report(
    desk_config: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: BaseException,
    reason: str,
):
    """With what was known by then; before, it says that it runs, which is what a lost machine leaves."""
    config = _retraining(desk_config, tmp_path)
    seen: list[str] = []

    def fails(*arguments: object) -> None:
        seen.append(_record(config).verdict)
        raise error

    monkeypatch.setattr(retrain, where, fails)
    with pytest.raises(type(error)):
        retrain.retrain(config)
    record = _record(config)
    assert seen == ["running"]
    assert (record.verdict, record.reason) == ("failed", reason)
    assert (record.triggers is None) == (where == "check")


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
def test_a_retraining_that_is_refused_is_in_its_report(desk_config: dict[str, Any], tmp_path: Path):
    """Before its first stage."""
    config = _retraining({**desk_config, "gates": [{"kind": "improvement", "margin": 0.99}]}, tmp_path)
    with pytest.raises(ConfigError, match="Hold out"):
        retrain.retrain(config)
    record = _record(config)
    assert record.verdict == "failed"
    assert "Hold out" in record.reason
