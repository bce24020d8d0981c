"""Paired comparison of candidate and champion on the held-out scenarios."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.gates import Metric
from grpo.config.pipeline import EvaluationSettings
from grpo.evaluation.evaluate import evaluate as compare_policies
from grpo.evaluation.schema import Evaluation
from grpo.evaluation.strata import Strata
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from grpo.tables import read_all
from grpo_tasks.execution.gpu_slots import holds_gpu_slot
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage

_KL_TOKENS = 16384


class EvaluateResult(StageResult):
    """The comparison, with its intervals."""

    evaluation: Evaluation


@stage
@holds_gpu_slot
def evaluate(
    champion: Artifact,
    candidate: Artifact,
    scenarios: Artifact,
    base: Artifact,
    settings: EvaluationSettings,
    metric: Metric,
    seed: int,
    store: str,
) -> EvaluateResult:
    """Compare two scored held-out rollouts of `scenarios`, paired by scenario and seed."""
    from grpo.learner.update import measure_kl_to_base

    artifacts = ArtifactStore(store)
    before, after = (read_all([artifacts.path(artifact)]) for artifact in (champion, candidate))
    distance = measure_kl_to_base(after, artifacts.path(base), max_tokens=_KL_TOKENS)
    strata = Strata.of(read_scenarios(artifacts.path(scenarios) / SCENARIOS_FILE))
    evaluation = compare_policies(before, after, settings, metric=metric, kl_to_base=distance, seed=seed, strata=strata)
    return EvaluateResult(evaluation=evaluation)
