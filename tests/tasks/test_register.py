from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grpo.artifacts import ArtifactStore
from grpo.config.adapters import LoraSettings
from grpo.config.pipeline import PipelineConfig
from grpo.config.policy import PolicySettings
from grpo.evaluation.document import Decision
from grpo.learner.checkpoints import STATE, CheckpointState
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.registry import ModelVersion
from tasks.base import base
from tasks.register import register
from tasks.warm_start import warm_start
from tests.doubles import short_run

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


@pytest.mark.parametrize("adapted", [True, False])
def test_a_version_is_known_by_the_weights_that_the_next_run_starts_from(
    tiny_folder: Path, tmp_path: Path, adapted: bool
):
    """With adapters these are merged ones, of another hash; without, the policy's own."""
    store = ArtifactStore(str(tmp_path / "store"))
    under = base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=str(tmp_path / "store"))
    candidate = under.checkpoint
    if adapted:
        model = load(tiny_folder)
        add_adapters(model.model, LoraSettings(r=2), seed=0)
        with torch.no_grad():
            for name, weight in model.model.named_parameters():
                if "lora_B" in name:
                    weight.fill_(0.05)
        policy = TransformersPolicy(model.model, model.tokenizer)

        def write(folder: Path) -> None:
            policy.save(folder)
            state = CheckpointState(policy_hash=policy.hash, base=under.checkpoint)
            (folder / STATE).write_text(state.model_dump_json())

        candidate = store.put_folder("checkpoint", write)
    version: ModelVersion = register.fn(
        config=PipelineConfig.model_validate(short_run(tmp_path)),
        run_key=f"known-{adapted}",
        decision=Decision(verdict="promote", reason="every gate passed"),
        candidate=candidate,
        champion=under.checkpoint,
        scenarios=under.checkpoint,
        sources="",
        model="",
        policies=(under.policy,),
        store=str(tmp_path / "store"),
    ).version
    started = load(store.path(warm_start.fn(champion=candidate, store=str(tmp_path / "store")).model)).hash
    assert version.tags["merged" if adapted else "policy"] == started
    assert ("merged" in version.tags, version.tags["policy"] == started) == (adapted, not adapted)
