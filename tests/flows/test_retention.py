"""Checkpoints that nothing needs are removed while a run goes on, and made again when they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo import progress
from grpo.artifacts import ArtifactStore
from grpo.evaluation.schema import ReportDocument
from grpo_tasks.registry import registry
from tests.doubles import changed
from tests.flows.test_train import _gone, cached, run

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]

ITERATIONS = 4


@pytest.fixture
def config(desk_config: dict[str, Any]) -> dict[str, Any]:
    """A run of four iterations, four scenarios each; what is held out is judged by few episodes."""
    return changed(
        desk_config,
        scenarios={"limit": 8},
        rollout={"scenarios": 4, "max_new_tokens": 32},
        training={"iterations": ITERATIONS},
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _all_cached(document: ReportDocument) -> bool:
    return all(hits == runs for hits, runs in cached(document).values())


def test_a_run_keeps_its_last_checkpoint_and_its_base(config: dict[str, Any], home: Path, tmp_path: Path):
    """Of base and four iterations two stay, three are listed in the report; at most three lay there at a time.

    The same run again is all hits. An earlier rollout that is lost needs a checkpoint that was removed: all are made
    again, and the run ends with the same weights.
    """
    store = tmp_path / "store"
    most: list[int] = []
    with progress.observed(lambda *_: most.append(_size(store))):
        first = run(config, home, name="kept")
    kept = sorted((store / "checkpoint").iterdir())
    assert len(kept) == 2
    assert len(first.removed) == ITERATIONS - 1
    state = max(_size(path) for path in kept)
    assert max(most) < 4 * state, "with rollouts, scenarios and results"
    version = registry().find(config["registry"]["model_name"], first.lineage.run)
    assert version is not None
    assert ArtifactStore(str(store)).path(version.checkpoint) in kept

    again = run(config, home, name="kept")
    assert _all_cached(again)
    assert again.removed == ()
    assert again.decision == first.decision

    for path in (store / "rollout").iterdir():
        path.unlink()
    third = run(config, home, name="kept")
    assert third.lineage.candidate_policy == first.lineage.candidate_policy
    assert third.decision == first.decision
    assert len(third.iterations) == ITERATIONS
    assert len(list((store / "checkpoint").iterdir())) == 2


def test_what_an_earlier_run_of_the_name_registered_stays(config: dict[str, Any], home: Path, tmp_path: Path):
    """Another run of the same name lets its last checkpoint go; the version keeps it. Base and two candidates."""
    first = run(config, home, name="longer")
    run(config, home, name="longer", training={"iterations": ITERATIONS + 2})
    version = registry().find(config["registry"]["model_name"], first.lineage.run)
    assert version is not None
    ArtifactStore(str(tmp_path / "store")).path(version.checkpoint)
    assert len(list((tmp_path / "store" / "checkpoint").iterdir())) == 3


def test_all_checkpoints_stay_where_the_config_asks_for_it(config: dict[str, Any], home: Path, tmp_path: Path):
    """Base and four iterations."""
    document = run(config, home, name="whole", save_total_limit=None)
    assert document.removed == ()
    assert len(list((tmp_path / "store" / "checkpoint").iterdir())) == 1 + ITERATIONS


def test_a_run_that_ended_before_it_registered_goes_on_after_another_run_of_its_name(
    config: dict[str, Any], home: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other run releases its checkpoints. All its stages are hits, and the last checkpoint is made again."""
    first = changed(config, training={"iterations": 2})
    with monkeypatch.context() as gone:
        gone.setattr("grpo_flows.train.register", _gone)
        with pytest.raises(ConnectionError, match="went away"):
            run(first, home, name="twice")
    run(first, home, name="twice", seed=9)
    document = run(first, home, name="twice")
    assert len(document.iterations) == 2
    assert registry().find(config["registry"]["model_name"], document.lineage.run) is not None
