"""A checkpoint of adapters, as training leaves one."""

from __future__ import annotations

from pathlib import Path

import torch

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.training import LoraSettings
from grpo.learner.checkpoints import STATE, CheckpointState
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.dtype import Dtype, cast_frozen
from grpo.policy.transformers.model import TransformersPolicy, load
from tests.doubles import put_folder


def adapted_policy(folder: Path, *, frozen: Dtype = "float32") -> TransformersPolicy:
    """A model with adapters whose second factors are all 0.05, so that they change its outputs."""
    base = load(folder)
    add_adapters(base.model, LoraSettings(r=2), seed=0)
    with torch.no_grad():
        for name, weight in base.model.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.05)
    cast_frozen(base.model, frozen)
    return TransformersPolicy(base.model, base.tokenizer)


def put_adapted(store: ArtifactStore, model: Path, base: Artifact) -> tuple[Artifact, TransformersPolicy]:
    """Store a checkpoint of adapters on the model."""
    policy = adapted_policy(model)

    def write(folder: Path) -> None:
        policy.save(folder)
        (folder / STATE).write_text(
            CheckpointState(policy_hash=policy.hash, path_check=policy.path_check, base=base).model_dump_json()
        )

    return put_folder(store, "checkpoint", write), policy
