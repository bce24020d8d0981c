"""Upgrade of a home: what it would change, what it changes, and what it refuses."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.errors import ConfigError, DataError
from grpo.log.compaction import compact
from grpo.log.folder import Problem, ServedLog
from grpo.log.join import join
from grpo.log.records import Feedback, ServedTurn
from grpo.policy.weights.registered import open_client
from grpo.scenarios.table import read_scenarios
from grpo.storage.schemas import MIGRATION
from grpo.tables import read_trajectories
from grpo.trajectories import Outcome
from grpo_local.checks import CheckResult, check_records
from grpo_local.upgrade import upgrade
from tests.places import ROOT

SCHEMAS = ROOT / "tests" / "schemas"
"""Files of earlier versions, each written by the code that had the version. `.sql.gz` are dumps of databases. Whole
homes are tried in `test_older_homes.py`."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose databases are in it."""
    folder = tmp_path / "home"
    for name in [name for name in os.environ if name.startswith("PREFECT_API_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    monkeypatch.setenv(
        "PREFECT_API_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{folder / 'prefect' / 'prefect.db'}"
    )
    return folder


def _database(path: Path, revision: str) -> None:
    """A database at a revision of its schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES (?)", [revision])
        database.commit()


def _dumped(path: Path, name: str) -> None:
    """A database that an earlier release has written, with a version or a flow run in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(gzip.decompress((SCHEMAS / f"{name}.sql.gz").read_bytes()).decode())
        database.commit()


def _records(home: Path) -> dict[str, CheckResult]:
    """What `grpo doctor` says about the records of a home that uses no Prefect server."""
    return {check.name: check for check in check_records(home)}


def _contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def test_a_dry_run_of_a_new_home_makes_nothing(home: Path):
    """Two databases are created."""
    changes = list(upgrade(home, dry_run=True))
    assert [change.partition(",")[0] for change in changes] == ["the database of MLflow", "the database of Prefect"]
    assert all(change.endswith(", is created") for change in changes)
    assert not home.exists()


def test_a_dry_run_names_what_an_upgrade_changes_and_changes_nothing(home: Path):
    """An MLflow database of 2020, an unsigned result, a file for all to read, and a log of a later version."""
    _database(home / "mlflow.db", "451aebb31d03")  # "add metric step", the oldest migration of MLflow
    (home / "prefect").mkdir()
    name = f"results/{'a' * 64}"
    document = home / "artifacts" / f"{name}.json"
    document.parent.mkdir(parents=True)
    digest = hashlib.sha256(f'{name}\n{{"reward":1.0}}'.encode()).hexdigest()
    document.write_text(json.dumps({"document": {"reward": 1.0}, "sha256": digest}))
    document.chmod(0o644)
    day = home / "served" / "turns" / "2026-11-22"
    day.mkdir(parents=True)
    table = pa.table({"end": [1]}).replace_schema_metadata({"served_log_version": "9"})
    pq.write_table(table, day / "20261122T030000-3fa1c0.parquet")
    before = _contents(home)
    changes = list(upgrade(home, dry_run=True))
    assert _contents(home) == before
    assert "is migrated from 451aebb31d03 to " in changes[0]
    assert changes[1].endswith("prefect.db, is created")
    assert changes[2].startswith(f"1 documents of {home / 'artifacts'}")
    assert changes[3] == f"1 files and folders of {home}, which others can read, become private"
    assert (
        f"1 files of the serving log {home / 'served'} have version 9, which this release does not read" in changes[-1]
    )


@pytest.mark.parametrize(("name", "file"), [("MLflow", "mlflow.db"), ("Prefect", "prefect/prefect.db")])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_database_of_a_newer_release_is_refused_and_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, *, dry_run: bool
):
    """One line says what to do."""
    _database(home / file, "feedfeedfeed")
    if name == "Prefect":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # a server migrates its own database
    before = (home / file).read_bytes()
    with pytest.raises(
        ConfigError, match=rf"the installed {name} [\d.]+ does not know, because a newer {name} migrated it"
    ) as refused:
        list(upgrade(home, dry_run=dry_run))
    assert "\n" not in str(refused.value)
    assert (home / file).read_bytes() == before
    check = _records(home)[name.lower()]
    assert (check.state, f"{check.detail}. {check.remedy}") == ("problem", str(refused.value))


def test_neither_database_is_migrated_if_one_is_refused(home: Path):
    """MLflow's is of an earlier release, and Prefect's of a newer one."""
    _dumped(home / "mlflow.db", "mlflow-3.16.1")
    _database(home / "prefect" / "prefect.db", "feedfeedfeed")
    before = _contents(home)
    with pytest.raises(ConfigError, match="a newer Prefect migrated it"):
        list(upgrade(home))
    assert _contents(home) == before


def test_databases_of_earlier_releases_are_migrated_by_nothing_else(home: Path):
    """A command refuses MLflow's, because opening it would migrate it. Prefect's server migrates its own database."""
    _dumped(home / "mlflow.db", "mlflow-3.16.1")
    _dumped(home / "prefect" / "prefect.db", "prefect-3.7.8")
    before = _contents(home)
    checks = _records(home)
    assert [checks[name].state for name in ("mlflow", "prefect")] == ["problem", "warning"]
    assert "has schema b7e2c1a4d9f3 of an earlier release, and the installed one" in checks["mlflow"].detail
    assert {checks[name].remedy for name in ("mlflow", "prefect")} == {MIGRATION}
    with pytest.raises(ConfigError, match="has schema b7e2c1a4d9f3 of an earlier release") as refused:
        open_client(os.environ["MLFLOW_TRACKING_URI"])
    assert str(refused.value).endswith(f". {MIGRATION}")
    assert {name: entry for name, entry in _contents(home).items() if not name.endswith(".lock")} == before

    changes = list(upgrade(home))
    assert ", is migrated from b7e2c1a4d9f3 to " in changes[0]
    assert ", is migrated from 79e7a60e43d8 to " in changes[1]
    assert {_records(home)[name].state for name in ("mlflow", "prefect")} == {"ok"}
    champion = open_client(os.environ["MLFLOW_TRACKING_URI"]).get_model_version_by_alias("kept", "champion")
    assert champion.tags["verdict"] == "promote"
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as database:
        assert database.execute("SELECT name, state_type FROM flow_run").fetchall() == [("night", "COMPLETED")]
    assert not [change for change in upgrade(home, dry_run=True) if "database" in change]


@pytest.mark.parametrize("version", ["6", "7"])
def test_rollouts_of_the_versions_before_are_read(version: str):
    """Files that the code of each version has written are kept in tests/schemas."""
    first, second = read_trajectories(SCHEMAS / f"rollouts-{version}.parquet")
    assert [turn.message.content for turn in first.turns] == ["Question a?", "Answer a."]
    assert first.token_ids.tolist() == [1, 2, 3, 4]
    assert first.sampler_logprobs.tolist() == [0.0, 0.0, np.float32(-0.1), -0.25]
    assert first.outcome == Outcome(success=True, checks={"refunded": True}, state={"order": 17})
    assert [trajectory.terminal_reward for trajectory in (first, second)] == [0.0, 1.0]
    assert first.policies == ("policy",)


def test_the_scenarios_of_this_version_are_read():
    """They were written on 27 November 2026."""
    [scenario] = read_scenarios(SCHEMAS / "scenarios-2.parquet")
    assert (scenario.id, scenario.user_responses) == ("desk-1", ("Where is order 17?",))
    assert scenario.world == {"orders": {"17": "sent"}}


@pytest.mark.parametrize(
    ("read", "file", "message"),
    [
        (
            read_trajectories,
            "rollouts-5.parquet",
            "has trajectory schema version 5, but this release reads 6, 7, 8. Repeat the rollout, or use the release "
            "that wrote the file",
        ),
        (
            read_scenarios,
            "scenarios-1.parquet",
            "has scenario schema version 1, but this release reads 2. Ingest the sources again",
        ),
    ],
)
def test_tables_that_are_too_old_are_refused_in_one_line(
    read: Callable[[Path], Iterable[object]], file: str, message: str
):
    """The stage that wrote them is computed again."""
    with pytest.raises(DataError) as refused:
        list(read(SCHEMAS / file))
    assert str(refused.value) == f"{SCHEMAS / file} {message}"


@pytest.mark.parametrize(("version", "turns"), [("2", "ab"), ("3", "abc")])
def test_a_serving_log_of_the_version_before_is_read_and_goes_on(home: Path, version: str, turns: str):
    """Tables of two versions, the second of a merged day, with a segment that is compacted here."""
    log = home / "served"
    shutil.copytree(SCHEMAS / f"log-{version}", log)
    assert not [change for change in upgrade(home, dry_run=True) if "serving log" in change]
    assert compact(log) == 1
    records = list(ServedLog(log).read())
    assert [record.id for record in records if isinstance(record, ServedTurn)] == list(turns)
    assert [record.rating for record in records if isinstance(record, Feedback)] == [1.0]
    [conversation] = join(ServedLog(log).read()).conversations
    assert [turn.id for turn in conversation.turns] == list(turns)


def test_a_serving_log_that_is_too_old_is_named_and_kept(home: Path):
    """Its newer segment is still read."""
    shutil.copytree(SCHEMAS / "log-1", home / "served")
    *_, last = upgrade(home, dry_run=True)
    assert last == (
        f"1 files of the serving log {home / 'served'} have version 1, which this release does not read "
        "(it reads 2, 3). Read them with the release that wrote them"
    )
    table, segment = ServedLog(home / "served").read()
    assert isinstance(table, Problem)
    assert table.problem.endswith(
        "has serving log version 1, but this release reads 2, 3. Use the release that wrote it"
    )
    assert not isinstance(segment, Problem)
