"""Evaluation of one policy on its held-out episodes."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import EvaluationSettings
from grpo.evaluation.evaluate import evaluate_policy as measure_policy
from grpo.evaluation.schema import PolicyEvaluation
from grpo.tables import read_all
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage


class EvaluatePolicyResult(StageResult):
    """The measurement, with its intervals."""

    measurement: PolicyEvaluation


@stage
def evaluate_policy(scored: Artifact, settings: EvaluationSettings, seed: int, store: str) -> EvaluatePolicyResult:
    """Success, reward and pass rates of one scored held-out rollout, with confidence intervals."""
    played = read_all([ArtifactStore(store).path(scored)])
    return EvaluatePolicyResult(measurement=measure_policy(played, settings, seed=seed))
