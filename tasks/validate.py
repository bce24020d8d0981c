"""Stage 2: data quality gate (Great Expectations), before anything is computed."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.scenarios.expectations import SuiteResult
from grpo.scenarios.expectations import validate as validate_scenarios
from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE, IngestCounts
from tasks.results import StageResult
from tasks.stage import stage


class ValidateResult(StageResult):
    """The Data Docs, and what each expectation observed."""

    docs: Artifact
    validation: SuiteResult


@stage
def validate(scenarios: Artifact, counts: IngestCounts, max_quarantined_fraction: float, store: str) -> ValidateResult:
    """Run the Great Expectations suite; a failed expectation stops the run and names the rows."""
    artifacts = ArtifactStore(store)
    folder = artifacts.path(scenarios)
    with artifacts.new_folder("data_docs") as new:
        validation = validate_scenarios(
            folder / SCENARIOS_FILE,
            folder / QUARANTINE_FILE,
            counts,
            new.path,
            max_quarantined_fraction=max_quarantined_fraction,
        )
    return ValidateResult(docs=new.artifact, validation=validation)
