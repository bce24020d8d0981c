"""Stage 2: data quality gate (Great Expectations), before anything is computed."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.scenarios.expectations import SuiteResult
from grpo.scenarios.expectations import validate as validate_scenarios
from grpo.scenarios.ingest import SCENARIOS_FILE
from tasks.results import StageResult
from tasks.stage import stage


class ValidateResult(StageResult):
    """The Data Docs, and what each expectation observed."""

    docs: Artifact
    validation: SuiteResult


@stage
def validate(scenarios: Artifact, validation_fraction: float, store: str) -> ValidateResult:
    """Run the Great Expectations suite; a failed expectation stops the run and names the first rows."""
    artifacts = ArtifactStore(store)
    table = artifacts.path(scenarios) / SCENARIOS_FILE
    with artifacts.new_folder("data_docs") as new:
        suite = validate_scenarios(table, new.path, validation_fraction=validation_fraction)
    return ValidateResult(docs=new.artifact, validation=suite)
