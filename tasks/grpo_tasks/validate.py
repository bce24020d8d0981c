"""Data quality gate (Great Expectations): a run stops before it computes anything if the scenarios are not usable."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.scenarios.expectations import SuiteResult
from grpo.scenarios.expectations import validate as validate_scenarios
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage


class ValidateResult(StageResult):
    """The Data Docs, and what each expectation observed."""

    docs: Artifact
    validation: SuiteResult


@stage
def validate(
    scenarios: Artifact, validation_fraction: float, store: str, previous: Artifact | None = None
) -> ValidateResult:
    """Run the Great Expectations suite. A failed expectation stops the run, and the error names the first rows.

    If `previous`, the scenarios of the last version, is given, the balance of the categories is compared with it.
    """
    artifacts = ArtifactStore(store)
    with artifacts.new_folder("data_docs") as new:
        suite = validate_scenarios(
            _table(artifacts, scenarios),
            new.path,
            validation_fraction=validation_fraction,
            previous_path=None if previous is None else _table(artifacts, previous),
        )
    return ValidateResult(docs=new.artifact, validation=suite)


def _table(artifacts: ArtifactStore, scenarios: Artifact) -> Path:
    """Table of scenarios. Ingested scenarios are a folder with the table, and a mixture is the file itself."""
    path = artifacts.path(scenarios)
    return path / SCENARIOS_FILE if path.is_dir() else path
