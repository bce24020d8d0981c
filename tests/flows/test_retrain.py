from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from grpo.config.dpo import DPOSettings, WrittenPairs
from grpo.config.pipeline import PipelineConfig
from grpo.config.scenarios import ServedSource
from grpo.config.sft import SFTSettings
from grpo.scenarios.sources import read_records
from grpo.serving.log import ServingLog
from grpo_flows.retrain import retraining_config, snapshot
from tests.grpo.scenarios.served.fixtures import turn


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
