"""Databases are created by one process, and messages mask passwords."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from mlflow.store.db.utils import _get_alembic_config

from grpo.errors import ConfigError, StorageError
from grpo.policy.weights.registered import open_client
from grpo.registry import Registry
from grpo.storage.databases import exclusive, is_database, make_tracking, upgrade_tracking
from grpo.storage.schemas import require_newest


def test_a_server_looks_after_its_own_database():
    """The address of a server is not that of a database."""
    assert [is_database(uri) for uri in ("sqlite:///a.db", "postgresql+psycopg2://h/d", "http://h", "https://h")] == [
        *(True, True, False, False)
    ]


def test_one_process_at_a_time_is_let_in(tmp_path: Path):
    """The second waits until the first is done."""
    uri, order = f"sqlite:///{tmp_path}/some.db", []

    def second() -> None:
        with exclusive(uri):
            order.append("second")

    with exclusive(uri):
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.2)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_a_database_that_cannot_be_used_is_named(tmp_path: Path):
    """A file of another format is an error with its address."""
    (tmp_path / "broken.db").write_text("no database at all, but long enough to be read as one")
    with pytest.raises(ConfigError, match=r"MLflow's database sqlite:.*broken\.db cannot be used"):
        upgrade_tracking(f"sqlite:///{tmp_path}/broken.db")


@pytest.mark.parametrize("open_database", [upgrade_tracking, make_tracking, require_newest, open_client])
def test_a_database_of_0_bytes_is_refused_and_stays_as_it_is(tmp_path: Path, open_database: Callable[[str], object]):
    """SQLite takes it for a new one, and the records of a truncated file would be gone without a word."""
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(ConfigError, match=r"mlflow\.db, has 0 bytes, so that its records are lost\. Restore a backup"):
        open_database(f"sqlite:///{tmp_path}/mlflow.db")
    assert (tmp_path / "mlflow.db").stat().st_size == 0


def test_an_older_database_is_brought_up_to_date(tmp_path: Path):
    """After an upgrade of MLflow its tables are those of the new version, and their rows are kept."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert Registry(uri).experiment("shared") == "1"
    newest = _revision(tmp_path / "mlflow.db")
    command.downgrade(_get_alembic_config(uri), "-1")
    assert _revision(tmp_path / "mlflow.db") != newest
    upgrade_tracking(uri)
    assert _revision(tmp_path / "mlflow.db") == newest
    assert Registry(uri).experiment("shared") == "1", "the rows are kept"


def test_a_database_that_a_full_disk_cut_off_is_not_there(small_disk: Path):
    """MLflow cannot go on with tables that it made in part; with room they are made whole."""
    uri = f"sqlite:///{small_disk}/mlflow.db"
    (small_disk / "other").write_bytes(b"x" * 900_000)
    with pytest.raises(StorageError, match=r"mlflow\.db: the disk is full"):
        Registry(uri).experiment("shared")
    assert sorted(path.name for path in small_disk.iterdir()) == ["mlflow.lock", "other"]
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    assert Registry(uri).experiment("shared") == "1"


def _revision(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    finally:
        connection.close()
