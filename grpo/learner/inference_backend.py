"""Inference backends for the policy of a checkpoint: transformers in this process, or vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.rollout import RolloutSettings
from grpo.learner.checkpoints import load_policy, read_state
from grpo.policy.transformers.model import TransformersPolicy

if TYPE_CHECKING:
    from grpo.policy.vllm import VLLMPolicy


def make_inference_backend(
    artifacts: ArtifactStore, checkpoint: Artifact, settings: RolloutSettings
) -> TransformersPolicy | VLLMPolicy:
    """The policy of a checkpoint on the backend `rollout.backend`, with weights in the checkpoint's dtype.

    For vLLM, adapters are merged into their base's weights. Raises `PolicyError` if the backend is not installed.
    """
    folder = artifacts.path(checkpoint)
    state = read_state(folder)
    if settings.backend == "transformers":
        return load_policy(artifacts, checkpoint).in_dtype(state.dtype)
    from grpo.policy.vllm import VLLMPolicy

    return VLLMPolicy(
        folder,
        base=artifacts.path(state.base) if state.base else None,
        policy_hash=state.policy_hash,
        max_context=settings.max_context,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        dtype=state.dtype,
    )
