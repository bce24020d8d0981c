"""The base policy as checkpoint 0, or the teacher of a distillation."""

from __future__ import annotations

import logging

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PolicySettings
from grpo.policy.catalog import check_trainable, load_merged
from grpo.policy.renderer import make_renderer
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage

logger = logging.getLogger(__name__)


class Checkpoint(StageResult):
    """A policy version in the store."""

    checkpoint: Artifact
    policy: str
    """Hash of its weights."""


class BaseCheckpoint(Checkpoint):
    """The base policy in the store."""

    forward_path: str
    """Forward path of rollouts and training, and its errors against the model's own plain forward pass."""
    chat_format: str
    """Forms in which tools, calls and unusual conversations are rendered, see `grpo.renderers.chat_format`."""


@stage
def load_base(policy: PolicySettings, content: str, store: str) -> BaseCheckpoint:
    """Fetch and load the model, check its forward path and chat template, and store it as the first checkpoint.

    Adapters are merged into their base. `content` is the model's identity: its commit, version or content.
    """
    from grpo.learner.checkpoints import save_base
    from grpo.policy.transformers.model_cache import model_cache

    check_trainable(policy.model)
    loaded = load_merged(policy.model, chat_template=policy.chat_template, quantization=policy.quantization)
    renderer = make_renderer(loaded.tokenizer, settings=policy.renderer)
    chat_format = renderer.chat_format
    level = logging.INFO if chat_format.is_native else logging.WARNING
    logger.log(level, "chat format of %s: %s. docs/internals/chat.md explains it", policy.model, chat_format)
    model_cache.put(loaded)
    with ArtifactStore(store).new_folder("checkpoint") as new:
        save_base(loaded, new.path, dtype=policy.dtype)
    return BaseCheckpoint(
        checkpoint=new.artifact,
        policy=loaded.hash,
        forward_path=str(loaded.path_check),
        chat_format=str(chat_format),
    )
