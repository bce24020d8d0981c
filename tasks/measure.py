"""How good one policy is, from held-out episodes that it has played."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.evaluation import EvaluationSettings
from grpo.evaluation.evaluate import evaluate_policy as measure_policy
from grpo.evaluation.schema import PolicyEvaluation
from grpo.tables import read_all
from tasks.results import StageResult
from tasks.stage import Clock, stage


class MeasureResult(StageResult):
    """The measurement, with its intervals."""

    measurement: PolicyEvaluation


@stage
def measure(scored: Artifact, settings: EvaluationSettings, seed: int, store: str) -> MeasureResult:
    """Measure one scored held-out rollout."""
    clock = Clock()
    played = read_all([ArtifactStore(store).path(scored)])
    return MeasureResult(measurement=measure_policy(played, settings, seed=seed), compute_s=clock.seconds)
