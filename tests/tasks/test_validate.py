from __future__ import annotations

from pathlib import Path

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.scenario import Metadata, Scenario
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import write_scenarios
from grpo_tasks.validate import validate
from tests.doubles import put_file, put_folder

pytestmark = pytest.mark.filterwarnings("ignore")


def _scenarios(refunds: int, deliveries: int) -> list[Scenario]:
    """So many of each category, with texts that differ."""
    kinds = ["refund"] * refunds + ["delivery"] * deliveries
    return [
        Scenario(
            id=f"s{index}",
            user_responses=(f"{kind} number {index * 7919} {'abcdefghij'[index % 10] * 9}",),
            metadata=Metadata(category=kind),
        )
        for index, kind in enumerate(kinds)
    ]


def _ingested(store: ArtifactStore, scenarios: list[Scenario]) -> Artifact:
    return put_folder(store, "scenarios", lambda folder: write_scenarios(folder / SCENARIOS_FILE, scenarios))


def test_a_mixture_is_compared_with_the_scenarios_of_the_last_version(tmp_path: Path):
    """Refunds fall from 50 of 100 to 10 of 100, more than 20 points: a warning that a run without a version has not."""
    store = ArtifactStore(str(tmp_path))
    before = _ingested(store, _scenarios(50, 50))
    now = _scenarios(10, 90)
    mixture = put_file(store, "mixture", ".parquet", lambda path: write_scenarios(path, now))
    compared = validate.fn(scenarios=mixture, validation_fraction=0.2, previous=before, store=str(tmp_path))
    alone = validate.fn(scenarios=mixture, validation_fraction=0.2, store=str(tmp_path))
    assert [warning for warning in compared.validation.warnings if "balance" in warning]
    assert not [warning for warning in alone.validation.warnings if "balance" in warning]
