"""What runs write to: the home, the artifacts, MLflow's records."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from flows.doctor.places import nearest, protocol_known
from flows.local.checks import CheckResult
from grpo.storage.credentials import masked


def stores(home: Path, store: str) -> Iterator[CheckResult]:
    """Home, databases and artifacts, tried by writing in the place or in the nearest folder above it that is there."""
    yield from records(home)
    yield artifacts(store)


def records(home: Path) -> Iterator[CheckResult]:
    """The home, and the databases that Prefect and MLflow keep in it or where the environment says."""
    yield folder(home)
    if "PREFECT_API_URL" not in os.environ:
        setting = "PREFECT_API_DATABASE_CONNECTION_URL"
        uri = os.environ.get(setting, f"sqlite:///{home / 'prefect' / 'prefect.db'}")
        yield _database("prefect", re.sub(r"\+\w+(?=://)", "", uri), setting=setting)
    yield _database("mlflow", os.environ["MLFLOW_TRACKING_URI"], setting="MLFLOW_TRACKING_URI")


def folder(home: Path) -> CheckResult:
    """The home of all records."""
    return _folder("home", home, remedy="fix the permissions of the folder, or set GRPO_HOME")


def _folder(name: str, place: Path, *, remedy: str) -> CheckResult:
    existing = nearest(place)
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is not a folder")
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=existing) as probe, tempfile.TemporaryFile(dir=probe):
            pass
    except OSError as error:
        reason = f"{place}: {error.strerror or error}"
        return CheckResult(
            area="stores",
            name=name,
            state="problem",
            found=f"the {name} {reason}",
            remedy=remedy,
            wrong_input=isinstance(error, NotADirectoryError),
        )
    made = "" if existing == place.resolve() else ", made by the first run"
    return CheckResult(area="stores", name=name, state="ok", found=f"{place}{made}")


def artifacts(store: str) -> CheckResult:
    """The store of artifacts, tried by writing."""
    name, remedy = "artifacts", "set `store` to a folder or address that can be written, and its credentials"
    if not protocol_known(store):
        return CheckResult(
            area="stores",
            name=name,
            state="problem",
            found=f"{masked(store)} is not an address of a store",
            remedy=remedy,
            wrong_input=True,
        )
    try:
        file_system, root = fsspec.core.url_to_fs(store)
        if isinstance(file_system, LocalFileSystem):
            return _folder(name, Path(root), remedy=remedy)
        probe = f"{root.rstrip('/')}/.probe-{uuid.uuid4().hex}"
        file_system.pipe_file(probe, b"")
        file_system.rm_file(probe)
    except Exception as error:  # noqa: BLE001 - whatever a store raises is what is to be shown
        found = f"{masked(store)}: {type(error).__name__}: {masked(str(error), known=store)}"
        return CheckResult(area="stores", name=name, state="problem", found=found, remedy=remedy)
    return CheckResult(area="stores", name=name, state="ok", found=masked(store))


def _database(name: str, uri: str, *, setting: str) -> CheckResult:
    """The records of one service: a database that can be opened; a server is looked at with the servers."""
    if uri.startswith(("http:", "https:")):
        return CheckResult(area="stores", name=name, state="ok", found=f"kept by the server at {masked(uri)}")
    if uri.startswith("sqlite:///"):
        return _sqlite(name, Path(uri.removeprefix("sqlite:///")), setting=setting)
    from sqlalchemy import create_engine
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    try:
        engine = create_engine(uri, connect_args={"connect_timeout": 5} if uri.startswith("postgres") else {})
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
        engine.dispose()
    except (SQLAlchemyError, ImportError, TypeError, ValueError) as error:
        reason = masked(str(error).strip().splitlines()[0], known=uri)
        return CheckResult(
            area="stores",
            name=name,
            state="problem",
            found=f"{masked(uri)}: {reason}",
            remedy=f"start the database, or set {setting}",
            wrong_input=not isinstance(error, OperationalError),
        )
    return CheckResult(area="stores", name=name, state="ok", found=masked(uri))


def _sqlite(name: str, path: Path, *, setting: str) -> CheckResult:
    if not path.exists():
        found = f"{path}, made by the first run or by `grpo databases`"
        checked = _folder(name, path.parent, remedy=f"set {setting}")
        return checked if checked.state == "problem" else checked.model_copy(update={"found": found})
    try:
        with closing(sqlite3.connect(path, timeout=5)) as database:
            database.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        return CheckResult(
            area="stores",
            name=name,
            state="problem",
            found=f"the records of {name} in {path} cannot be used: {error}",
            remedy=f"bring a backup back, move the file away and call `grpo databases`, or set {setting}",
        )
    return CheckResult(area="stores", name=name, state="ok", found=str(path))
