"""Checkpoints: weights, tokenizer, optimizer, schedule and RNG state of a policy, as safetensors and JSON.

config.json  model.safetensors  tokenizer.json  chat_template.jinja     a Hugging Face model folder, or
adapter_config.json  adapter_model.safetensors  tokenizer…              adapters of the base in learner.json
optimizer.safetensors                                                   moments of each weight, RNG state, or
optimizer/shard-00001-model-00001-of-00001.safetensors …                the same of sharded weights, by process
critic.safetensors                                                      ppo and a2c: value head and its moments
learner.json                                                            step count, policy hash, parent
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grpo.artifact_copies import adopt
from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import NoEffect, PolicyError
from grpo.learner.critic import CRITIC
from grpo.learner.learner import Learner
from grpo.learner.optimizer_shards import load_shards, save_shards
from grpo.policy.servers.protocol import is_model_file
from grpo.policy.transformers.dtype import Dtype
from grpo.policy.transformers.exactness import PathCheck
from grpo.policy.transformers.model import TransformersPolicy
from grpo.policy.transformers.model_cache import model_cache
from grpo.policy.transformers.sharding import distribute_like
from grpo.storage.digests import MANIFEST

OPTIMIZER, STATE = "optimizer.safetensors", "learner.json"
OPTIMIZER_SHARDS = "optimizer"
_RNG = "rng"
_TRAINING = frozenset({OPTIMIZER, STATE, CRITIC})
"""Files that only a training reads."""


class CheckpointState(BaseModel):
    """Step count, hashes and loss scale of a checkpoint: the contents of learner.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy_hash: str
    dtype: Dtype = "float32"
    """Dtype of the weights in rollouts and training passes. In this folder they are in float32."""
    parent: str | None = None
    """Hash of the policy that this one was trained from; None for the base."""
    step_count: int = 0
    """Optimizer steps since the base."""
    microbatch_tokens: int | None = None
    """Tokens in a forward pass that fit into memory."""
    loss_scale: tuple[float, int] | None = None
    """Loss scale of fp16, and the number of steps without overflow since it last changed."""
    path_check: PathCheck
    """Forward path of the policy and its errors against a plain forward pass."""
    base: Artifact | None = None
    """Checkpoint of the base model, if this one has only adapters."""


def save_base(policy: TransformersPolicy, folder: Path, *, dtype: Dtype = "float32") -> None:
    """Write the initial policy of a run, which has no optimizer state. All its checkpoints have the same `dtype`."""
    policy.save(folder)
    state = CheckpointState(policy_hash=policy.hash, path_check=policy.path_check, dtype=dtype)
    (folder / STATE).write_text(state.model_dump_json(), encoding="utf-8")


def save_tuned(policy: TransformersPolicy, base: Path, target: Path, *, stage: str) -> str:
    """Write the weights that a stage trained in place from checkpoint `base` as a new base, and return their hash.

    Raises `NoEffect` if no weight changed.
    """
    tuned, state = TransformersPolicy(policy.model, policy.tokenizer), read_state(base)
    if tuned.hash == state.policy_hash:
        raise NoEffect(f"{stage} changed no weight. Raise {stage}.learning_rate")
    save_base(tuned, target, dtype=state.dtype)
    model_cache.put(tuned)
    return tuned.hash


def save(
    policy: TransformersPolicy,
    learner: Learner,
    folder: Path,
    *,
    parent: str,
    dtype: Dtype = "float32",
    base: Artifact | None = None,
    source: Path | None = None,
) -> None:
    """Write a trained policy with the state that the next update continues from.

    If the trained weights are sharded, `source` is the checkpoint that they were read from, and every process writes
    its part of the optimizer state. Rank 0 writes everything else.
    """
    is_first = learner.process_group.rank == 0
    tensors = {
        f"{name}.{key}": value
        for name, parameter in learner.master.named_parameters()
        for key, value in learner.optimizer.state[parameter].items()
    }
    tensors[_RNG] = torch.get_rng_state()
    if source is not None:
        policy.save_sharded(folder, source=source, write=is_first)
        save_shards(tensors, folder / OPTIMIZER_SHARDS)
    elif is_first:
        policy.save(folder)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / OPTIMIZER)
    if not is_first:
        return
    scaler = learner.scaler.state_dict()  # empty unless in fp16
    scale = (scaler["scale"], scaler["_growth_tracker"]) if scaler else None
    state = CheckpointState(
        policy_hash=policy.hash,
        path_check=policy.path_check,
        dtype=dtype,
        parent=parent,
        step_count=learner.step_count,
        microbatch_tokens=learner.microbatch_tokens,
        loss_scale=scale,
        base=base,
    )
    (folder / STATE).write_text(state.model_dump_json(), encoding="utf-8")


def read_state(folder: Path) -> CheckpointState:
    """State of the checkpoint in `folder`. Raises `PolicyError` if the folder is not a checkpoint."""
    try:
        return CheckpointState.model_validate_json((folder / STATE).read_bytes())
    except FileNotFoundError as error:
        raise PolicyError(
            f"{folder} is not a checkpoint: {STATE} is missing. Give the folder that a train stage wrote"
        ) from error


def weight_files(folder: Path) -> dict[str, str]:
    """sha256 of each file of a stored checkpoint that another machine needs to generate with it, by its name.

    These are weights, config and tokenizer, without the state of training. The manifest has the digests, which the
    store has verified.
    """
    digests: dict[str, str] = json.loads((folder / MANIFEST).read_bytes())
    return {name: digest for name, digest in digests.items() if name not in _TRAINING and is_model_file(name)}


def adopt_checkpoint(artifacts: ArtifactStore, checkpoint: Artifact) -> Artifact:
    """Own the checkpoint in this store. If another store holds it, it is copied with the base of its adapters.

    Raises `ArtifactError` if it is missing or damaged there.
    """
    if artifacts.has(checkpoint):
        return artifacts.own(checkpoint)
    own = adopt(artifacts, checkpoint)
    if (base := read_state(artifacts.path(own)).base) is not None:
        adopt_checkpoint(artifacts, base)
    return own


def load_policy(artifacts: ArtifactStore, checkpoint: Artifact) -> TransformersPolicy:
    """The policy of a checkpoint in the store, from the model cache if it is there."""
    folder = artifacts.path(checkpoint)
    state = read_state(folder)
    base = artifacts.path(state.base) if state.base else None
    return model_cache.get(state.policy_hash, folder, base=base, frozen=state.dtype)


def resume(learner: Learner, folder: Path) -> None:
    """Load the step count of a checkpoint and, unless it is a base, its optimizer moments and RNG state.

    Raises `PolicyError` if the optimizer state is damaged or belongs to another architecture.
    """
    state = read_state(folder)
    learner.step_count = state.step_count
    if state.microbatch_tokens is not None:
        learner.microbatch_tokens = min(learner.microbatch_tokens, state.microbatch_tokens)
    if state.loss_scale is not None and learner.scaler.is_enabled():
        scale, good_steps = state.loss_scale
        learner.scaler.load_state_dict({**learner.scaler.state_dict(), "scale": scale, "_growth_tracker": good_steps})
    tensors = _optimizer_tensors(learner, folder)
    if tensors is None:
        return
    torch.set_rng_state(tensors.pop(_RNG))
    if not tensors:  # trust-region steps have no moments
        return
    for name, parameter in learner.master.named_parameters():
        if not parameter.requires_grad:
            continue
        moments = {key: tensors.pop(f"{name}.{key}", None) for key in ("step", "exp_avg", "exp_avg_sq")}
        if all(value is None for value in moments.values()):
            continue  # the weight had no gradient so far, e.g. the bias of a router
        if any(value is None for value in moments.values()) or moments["exp_avg"].shape != parameter.shape:
            raise PolicyError(
                f"optimizer state in {folder} does not fit weight {name} {tuple(parameter.shape)}. Run the "
                "stage that wrote it again"
            )
        learner.optimizer.state[parameter] = {
            # copied, because the first write to memory-mapped moments takes a page fault per 4 KB
            key: value.to(parameter.device) if key == "step" else distribute_like(value.clone(), parameter)
            for key, value in moments.items()
        }
    if tensors:
        raise PolicyError(
            f"optimizer state in {folder} belongs to another model, which has {min(tensors)}. Run the stage "
            "that wrote it again"
        )


def _optimizer_tensors(learner: Learner, folder: Path) -> dict[str, Any] | None:
    """Moments, steps and RNG state of a checkpoint, by name, or None if it has none.

    Of tensors that were written in shards, a learner with sharded weights reads only its part.
    """
    shards, file = folder / OPTIMIZER_SHARDS, folder / OPTIMIZER
    try:
        if shards.is_dir():
            return load_shards(shards, dict(learner.master.named_parameters()))
        return load_file(file) if file.is_file() else None
    except SafetensorError as error:
        place = shards if shards.is_dir() else file
        raise PolicyError(f"{place} cannot be read: {error}. Run the stage that wrote it again") from error
