"""The whole pipeline with its artifacts, and its cached results, in an object store: an S3 server on loopback."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from grpo import progress
from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from tests.doubles import changed
from tests.object_store import object_store

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]

STORE = "s3://grpo/alone"  # other tests keep theirs in the same bucket


@pytest.fixture(scope="module", autouse=True)
def _bucket() -> Iterator[None]:
    """An object store."""
    with pytest.MonkeyPatch.context() as environment, object_store(environment):
        yield


def _run(config: dict[str, Any], home: Path, machine: Path) -> ReportDocument:
    """Run the flow on a machine that has nothing but what is in the bucket."""
    from grpo_flows.train import train

    machine.mkdir()
    with pytest.MonkeyPatch.context() as change:
        change.setattr(tempfile, "tempdir", str(machine))
        train(PipelineConfig.model_validate(config))
    return read_report(home / str(config["name"]) / "report.json")


def test_the_pipeline_runs_from_a_bucket(desk_config: dict[str, Any], home: Path, tmp_path: Path):
    """First all is computed; on another machine all is a hit; what was damaged in the bucket is computed again.

    The registered version leads to its checkpoint in the bucket, and no secret is in any object's content.
    """
    config = changed(desk_config, name="bucket", store=STORE, training={"iterations": 1})
    first = _run(config, home, tmp_path / "first")
    assert all(stage.cached == 0 for stage in first.stages)

    second = _run(config, home, tmp_path / "second")
    assert all(stage.cached == stage.runs for stage in second.stages), second.stages
    assert second.decision == first.decision
    assert second.lineage == first.lineage

    bucket = boto3.resource("s3").Bucket("grpo")
    for item in bucket.objects.filter(Prefix="alone/scored/"):
        content = item.get()["Body"].read()
        item.put(Body=content[:-1] + bytes([content[-1] ^ 1]))
    told: list[str] = []
    with progress.observed(lambda stage, *_: told.append(stage)):
        third = _run(config, home, tmp_path / "third")
    assert [text for text in told if text.startswith("score again: scored s3://") and "damaged" in text]
    assert {stage.name for stage in third.stages if stage.cached < stage.runs} == {"score"}
    assert third.decision == first.decision

    from grpo_tasks.registry import registry

    version = registry().find(config["registry"]["model_name"], first.lineage.run)
    assert version is not None
    assert version.checkpoint.uri.startswith(f"{STORE}/checkpoint/")
    assert (ArtifactStore(STORE).path(version.checkpoint) / "model.safetensors").is_file()
    assert not [item.key for item in bucket.objects.all() if b"testing-secret" in item.get()["Body"].read()]
