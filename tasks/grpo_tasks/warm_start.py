"""Warm start: the champion as a model folder that a run starts from."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage


class WarmStart(StageResult):
    """A model folder: weights, with adapters merged in, and tokenizer."""

    model: Artifact


@stage
def warm_start(champion: Artifact, store: str) -> WarmStart:
    """Export the champion's weights with adapters merged. The optimizer and its schedule start from the beginning."""
    from grpo.learner.checkpoints import load_policy
    from grpo.policy.transformers.adapters import merge_adapters
    from grpo.policy.transformers.model import TransformersPolicy

    artifacts = ArtifactStore(store)
    policy = load_policy(artifacts, champion)
    with artifacts.new_folder("model") as new:
        TransformersPolicy(merge_adapters(policy.model), policy.tokenizer).save(new.path)
    return WarmStart(model=new.artifact)
