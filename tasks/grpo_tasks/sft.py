"""Supervised fine-tuning of the base on demonstrations → the checkpoint that GRPO starts from."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.episode_parts import EpisodeParts
from grpo.config.sft import SFTSettings
from grpo_tasks.execution.gpu_slots import holds_gpu_slot
from grpo_tasks.execution.stage import stage
from grpo_tasks.load_base import Checkpoint


class SFTResult(Checkpoint):
    """The fine-tuned checkpoint and its losses."""

    demonstrations: int
    losses: tuple[float, ...]
    """Loss of each optimizer step, in nats per token."""


@stage
@holds_gpu_slot
def sft(
    base: Artifact,
    settings: SFTSettings,
    parts: EpisodeParts,
    max_tokens: int,
    seed: int,
    store: str,
) -> SFTResult:
    """Train on the demonstrations, rendered with the prompts of this agent and environment."""
    from grpo.learner.offline.fine_tuning import fine_tune

    artifacts = ArtifactStore(store)
    with artifacts.new_folder("checkpoint", like=base) as new:
        policy, count, losses = fine_tune(
            artifacts.path(base),
            new.path,
            settings,
            parts=parts,
            max_tokens=max_tokens,
            seed=seed,
        )
    return SFTResult(checkpoint=new.artifact, policy=policy, demonstrations=count, losses=losses)
