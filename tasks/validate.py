"""Stage 2: hold the scenarios against the expectations, before anything is computed."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.scenarios.expectations import SuiteResult
from grpo.scenarios.expectations import validate as validate_scenarios
from grpo.scenarios.ingest import SCENARIOS_FILE
from tasks.results import StageResult
from tasks.stage import Clock, stage


class ValidateResult(StageResult):
    """The Data Docs, and what each expectation observed."""

    docs: Artifact
    validation: SuiteResult


@stage
def validate(scenarios: Artifact, validation_fraction: float, store: str) -> ValidateResult:
    """Run the Great Expectations suite; a failed expectation stops the run and names the first rows."""
    clock = Clock()
    artifacts = ArtifactStore(store)
    table = artifacts.path(scenarios) / SCENARIOS_FILE
    results: list[SuiteResult] = []

    def write(docs: Path) -> None:
        results.append(validate_scenarios(table, docs, validation_fraction=validation_fraction))

    artifact = artifacts.put_folder("data_docs", write)
    return ValidateResult(docs=artifact, validation=results[0], compute_s=clock.seconds)
