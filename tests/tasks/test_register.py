from __future__ import annotations

from pathlib import Path

import pytest

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig, PolicySettings
from grpo.errors import ErasedError
from grpo.evaluation.schema import Decision, Evaluation
from grpo.policy.transformers.model import load
from grpo.registry import ModelVersion
from grpo_tasks.load_base import load_base
from grpo_tasks.register import register
from grpo_tasks.registry import registry
from grpo_tasks.warm_start import warm_start
from tests.doubles import short_run
from tests.grpo.evaluation.test_html_report import evaluation
from tests.tasks.adapted import put_adapted

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


@pytest.mark.parametrize("adapted", [True, False])
def test_a_version_is_known_by_the_weights_that_the_next_run_starts_from(
    tiny_folder: Path, tmp_path: Path, adapted: bool
):
    """With adapters these are merged ones, of another hash; without, the policy's own."""
    store = ArtifactStore(str(tmp_path / "store"))
    under = load_base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=str(tmp_path / "store"))
    candidate = under.checkpoint
    if adapted:
        candidate, _ = put_adapted(store, tiny_folder, under.checkpoint)
    version: ModelVersion = register.fn(
        config=PipelineConfig.model_validate(short_run(tmp_path)),
        run_key=f"known-{adapted}",
        decision=Decision(verdict="promote", reason="every gate passed"),
        evaluation=Evaluation.model_validate(evaluation()),
        candidate=candidate,
        champion=under.checkpoint,
        scenarios=under.checkpoint,
        sources="",
        model="",
        external_digests={},
        policies=(under.policy,),
        store=str(tmp_path / "store"),
    ).version
    assert version.tags["heldout"].startswith("success 0.813 [0.753, 0.873], champion 0.412")
    started = load(store.path(warm_start.fn(champion=candidate, store=str(tmp_path / "store")).model)).hash
    assert version.tags["merged" if adapted else "policy"] == started
    assert ("merged" in version.tags, version.tags["policy"] == started) == (adapted, not adapted)


@pytest.mark.parametrize("erased", ["scenarios", "mixture"])
def test_a_run_whose_data_are_erased_while_it_runs_registers_nothing(tiny_folder: Path, tmp_path: Path, erased: str):
    """The table that it ingested, or the mixture that its config names; before, a version had the data."""
    store = ArtifactStore(str(tmp_path / "store"))
    base = load_base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=str(tmp_path / "store"))
    data = {}
    for kind in ("scenarios", "mixture"):
        with store.new_file(kind, ".parquet") as new:
            new.path.write_bytes(kind.encode())
        data[kind] = new.artifact
    source = {"kind": "parquet", "path": store.address(data["mixture"])}
    config = PipelineConfig.model_validate(short_run(tmp_path) | {"scenarios": {"sources": [source]}})
    store.erase(data[erased], None)
    with pytest.raises(ErasedError, match="is not registered: conversations that it was trained on were erased"):
        register.fn(
            config=config,
            run_key=f"erased-{erased}",
            decision=Decision(verdict="promote", reason="every gate passed"),
            evaluation=Evaluation.model_validate(evaluation()),
            candidate=base.checkpoint,
            champion=base.checkpoint,
            scenarios=data["scenarios"],
            sources="",
            model="",
            external_digests={},
            policies=(base.policy,),
            store=str(tmp_path / "store"),
        )
    assert registry().find(config.registry.model_name, f"erased-{erased}") is None
