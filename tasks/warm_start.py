"""The champion as a model folder that a run can start from."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from tasks.results import StageResult
from tasks.stage import Clock, stage


class WarmStart(StageResult):
    """A model folder: weights, with adapters merged in, and tokenizer."""

    model: Artifact


@stage
def warm_start(champion: Artifact, store: str) -> WarmStart:
    """Take the champion's weights out of its checkpoint; optimizer and schedule begin anew."""
    from grpo.learner.checkpoints import load_policy
    from grpo.policy.transformers.adapters import merge_adapters
    from grpo.policy.transformers.model import TransformersPolicy

    clock = Clock()
    artifacts = ArtifactStore(store)
    policy = load_policy(artifacts, champion)

    def write(folder: Path) -> None:
        TransformersPolicy(merge_adapters(policy.model), policy.tokenizer).save(folder)

    return WarmStart(model=artifacts.put_folder("model", write), compute_s=clock.seconds)
