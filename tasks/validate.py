"""Stage 2: hold the scenarios against the expectations, before anything is computed."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.scenarios.expectations import SuiteResult
from grpo.scenarios.expectations import validate as validate_scenarios
from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE, IngestCounts
from tasks.results import StageResult
from tasks.stage import Clock, stage


class ValidateResult(StageResult):
    """The Data Docs, and what each expectation observed."""

    docs: Artifact
    validation: SuiteResult


@stage
def validate(scenarios: Artifact, counts: IngestCounts, max_quarantined_fraction: float, store: str) -> ValidateResult:
    """Run the Great Expectations suite; a failed expectation stops the run and says which rows."""
    clock = Clock()
    artifacts = ArtifactStore(store)
    folder = artifacts.path(scenarios)
    found: list[SuiteResult] = []

    def write(docs: Path) -> None:
        found.append(
            validate_scenarios(
                folder / SCENARIOS_FILE,
                folder / QUARANTINE_FILE,
                counts,
                docs,
                max_quarantined_fraction=max_quarantined_fraction,
            )
        )

    artifact = artifacts.put_folder("data_docs", write)
    return ValidateResult(docs=artifact, validation=found[0], compute_s=clock.seconds)
