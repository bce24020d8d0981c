"""Inference backends for the policy of a checkpoint: transformers in this process, vLLM, or servers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.rollout import RolloutSettings
from grpo.errors import PolicyError
from grpo.learner.checkpoints import load_policy, read_state, weight_files
from grpo.learner.server_check import turn_fault
from grpo.policy.servers.model_files import HeldFile, Weights
from grpo.policy.servers.policy import ServersPolicy, server_urls
from grpo.policy.servers.protocol import WeightsRequest
from grpo.policy.transformers.model import TransformersPolicy

if TYPE_CHECKING:
    from grpo.policy.vllm import VLLMPolicy

_SILENT_SHARE = 0.75
"""Share of the time of a turn after which a server that has answered none counts as gone, before turns end by it."""


def make_inference_backend(
    artifacts: ArtifactStore, checkpoint: Artifact, settings: RolloutSettings
) -> TransformersPolicy | VLLMPolicy | ServersPolicy:
    """The policy of a checkpoint on the backend `rollout.backend`, with weights in the checkpoint's dtype.

    For vLLM, adapters are merged into their base's weights. Raises `PolicyError` if the backend is not installed.
    """
    folder = artifacts.path(checkpoint)
    state = read_state(folder)
    if settings.backend == "transformers":
        return policy_in_process(artifacts, checkpoint)
    if settings.backend == "servers":
        return make_servers_policy(artifacts, checkpoint, settings)
    from grpo.policy.vllm import VLLMPolicy

    return VLLMPolicy(
        folder,
        base=artifacts.path(state.base) if state.base else None,
        policy_hash=state.policy_hash,
        max_context=settings.max_context,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        dtype=state.dtype,
    )


def policy_in_process(artifacts: ArtifactStore, checkpoint: Artifact) -> TransformersPolicy:
    """The policy of a checkpoint in this process, with weights in the checkpoint's dtype."""
    return load_policy(artifacts, checkpoint).in_dtype(read_state(artifacts.path(checkpoint)).dtype)


def make_servers_policy(
    artifacts: ArtifactStore, checkpoint: Artifact, settings: RolloutSettings, *, pause_s: float = 0.5, tries: int = 5
) -> ServersPolicy:
    """The policy of a checkpoint on `rollout.servers`. The model is also loaded here, to check turns of the servers.

    See `ServersPolicy` for `pause_s` and `tries`. Raises `PolicyError` if the checkpoint is not rolled out in float32.
    """
    folder = artifacts.path(checkpoint)
    state = read_state(folder)
    if state.dtype != "float32":
        raise PolicyError(
            f"checkpoint {checkpoint.uri} is rolled out in {state.dtype}, and rollout servers compute in float32. Set "
            "rollout.backend: transformers"
        )
    base = None if state.base is None else artifacts.path(state.base)
    files = weight_files(folder)
    base_files = {} if base is None else weight_files(base)
    paths = {digest: folder / name for name, digest in files.items()}
    if base is not None:
        paths |= {digest: base / name for name, digest in base_files.items()}
    policy = load_policy(artifacts, checkpoint)
    return ServersPolicy(
        server_urls(settings.servers),
        Weights(
            request=WeightsRequest(version=state.policy_hash, files=files, base=base_files),
            files={digest: HeldFile(path) for digest, path in paths.items()},
            vocabulary=int(policy.model.get_input_embeddings().num_embeddings),
            max_context=min(policy.max_context, settings.max_context),
        ),
        policy.tokenizer,
        partial(turn_fault, policy),
        max_context=policy.max_context,
        hedge_s=settings.hedge_s,
        silent_s=_SILENT_SHARE * settings.turn_timeout_s,
        pause_s=pause_s,
        tries=tries,
    )
