"""The policy that a run starts from, taken into the store as checkpoint 0."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PolicySettings
from grpo.learner.checkpoints import save_base
from grpo.policy.catalog import model_folder
from grpo.policy.transformers.model import load, model_cache
from grpo.renderers.chat_template import Renderer
from tasks.results import StageResult
from tasks.stage import Clock, stage


class Checkpoint(StageResult):
    """A policy version in the store."""

    checkpoint: Artifact
    policy: str
    """Hash of its weights."""


@stage
def base(policy: PolicySettings, content: str, store: str) -> Checkpoint:
    """Load the model once, check its tokenizer and chat template, and keep it as the first checkpoint.

    `content` is the digest of the model folder.
    """
    clock = Clock()
    folder = model_folder(policy.model)
    loaded = load(folder, chat_template=policy.chat_template, quantization=policy.quantization)
    Renderer(loaded.tokenizer)
    model_cache.put(loaded)
    artifact = ArtifactStore(store).put_folder("checkpoint", lambda folder: save_base(loaded, folder))
    return Checkpoint(checkpoint=artifact, policy=loaded.hash, compute_s=clock.seconds)
