"""Promotion gates."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.gates import GateSettings
from grpo.config.pipeline import EvaluationSettings
from grpo.evaluation.evidence import Evidence
from grpo.evaluation.gates import gate as judge
from grpo.evaluation.schema import Decision, Evaluation
from grpo.evaluation.strata import Strata
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from grpo.tables import read_all
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage


class GateResult(StageResult):
    """The decision with its numbers."""

    decision: Decision


@stage
def gate(
    evaluation: Evaluation,
    champion: Artifact,
    candidate: Artifact,
    scenarios: Artifact,
    gates: tuple[GateSettings, ...],
    settings: EvaluationSettings,
    seed: int,
    store: str,
) -> GateResult:
    """Check the evaluation, and the scored held-out rollouts that it was made from, against every gate.

    Conversations among the `scenarios` are judged separately.
    """
    artifacts = ArtifactStore(store)
    before, after = (list(read_all([artifacts.path(artifact)])) for artifact in (champion, candidate))
    strata = Strata.of(read_scenarios(artifacts.path(scenarios) / SCENARIOS_FILE))
    evidence = Evidence(
        evaluation=evaluation, champion=before, candidate=after, settings=settings, seed=seed, strata=strata
    )
    return GateResult(decision=judge(evidence, gates))
