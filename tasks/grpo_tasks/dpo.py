"""DPO of a policy on preference pairs → the checkpoint that GRPO starts from."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.dpo import DPOSettings
from grpo.config.episode_parts import EpisodeParts
from grpo.learner.metrics import PreferenceMetrics
from grpo_tasks.execution.gpu_slots import holds_gpu_slot
from grpo_tasks.execution.stage import stage
from grpo_tasks.load_base import Checkpoint


class DPOResult(Checkpoint):
    """The trained checkpoint, and its metrics on the pairs."""

    pairs: int
    losses: tuple[float, ...]
    """Loss of each optimizer step, in nats per pair."""
    before: PreferenceMetrics
    after: PreferenceMetrics


@stage
@holds_gpu_slot
def dpo(
    base: Artifact,
    settings: DPOSettings,
    parts: EpisodeParts,
    max_tokens: int,
    seed: int,
    store: str,
) -> DPOResult:
    """Train the policy to prefer the chosen replies to the rejected ones. The base is the reference policy."""
    from grpo.learner.offline.preference_tuning import tune_on_preferences

    artifacts = ArtifactStore(store)
    with artifacts.new_folder("checkpoint", like=base) as new:
        tuned = tune_on_preferences(
            artifacts.path(base),
            new.path,
            settings,
            parts=parts,
            max_tokens=max_tokens,
            seed=seed,
        )
    return DPOResult(
        checkpoint=new.artifact,
        policy=tuned.policy,
        pairs=tuned.pairs,
        losses=tuned.losses,
        before=tuned.before,
        after=tuned.after,
    )
