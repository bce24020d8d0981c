"""The split leaves out what the environment cannot play, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.environments import TaskSettings
from grpo.errors import BudgetError
from grpo.scenario import Scenario
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import write_scenarios
from grpo_tasks.split import read_split, split
from tests.doubles import put_folder

TASKS = TaskSettings(kind="task")


def _table(store: Path, *, unplayable: int) -> Artifact:
    """Twenty scenarios, so many of them with a tool that no world has."""
    brew = ({"name": "brew", "parameters": {}},)
    scenarios = [
        Scenario(id=f"s{k}", user_responses=(f"request {k}",), tools=brew if k < unplayable else ()) for k in range(20)
    ]
    return put_folder(
        ArtifactStore(str(store)),
        "scenarios",
        lambda folder: write_scenarios(folder / SCENARIOS_FILE, scenarios) and None,
    )


def test_a_scenario_that_cannot_be_played_is_on_neither_side(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """One of twenty, with its reason in the split and in the log; without an environment nothing is left out."""
    table, store = _table(tmp_path, unplayable=1), str(tmp_path)
    result = split.fn(
        scenarios=table, validation_fraction=0.25, limit=None, store=store, environment=TASKS, max_refused_share=0.05
    )
    sides = read_split(ArtifactStore(store), result.split)
    assert (result.train + result.heldout, result.excluded) == (19, 1)
    assert "s0" not in (*sides.train, *sides.heldout)
    assert sides.excluded == {"s0": "scenario s0 is not playable: no world has brew. Leave it out"}
    assert "left out of the split: scenario s0 is not playable" in caplog.text
    whole = split.fn(scenarios=table, validation_fraction=0.25, limit=None, store=store)
    assert (whole.train + whole.heldout, whole.excluded) == (20, 0)


def test_too_many_that_cannot_be_played_stop_the_run_before_anything_is_played(tmp_path: Path):
    """Two of twenty are more than 5 %."""
    with pytest.raises(BudgetError, match="2 of 20 scenarios cannot be played in environment task"):
        split.fn(
            scenarios=_table(tmp_path, unplayable=2),
            validation_fraction=0.25,
            limit=None,
            store=str(tmp_path),
            environment=TASKS,
            max_refused_share=0.05,
        )
