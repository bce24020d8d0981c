"""What runs write to: the home, the artifacts, MLflow's records."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from flows.doctor.finding import Finding
from flows.doctor.places import nearest, protocol_known
from grpo.credentials import masked


def stores(home: Path, store: str) -> Iterator[Finding]:
    """Whether what runs leave behind can be written: tried where the place is there, and asked for where it is not."""
    yield _folder("home", home, remedy="fix the permissions of the folder, or set GRPO_HOME")
    yield _artifacts(store)
    yield _mlflow_store(os.environ["MLFLOW_TRACKING_URI"])


def _folder(name: str, place: Path, *, remedy: str) -> Finding:
    existing = nearest(place)
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is no folder")
        if existing == place.resolve():
            with tempfile.TemporaryFile(dir=place):
                pass
        elif not os.access(existing, os.W_OK):
            raise PermissionError(f"{existing} may not be written")
    except OSError as error:
        found = f"{place}: {error.strerror or error}"
        return Finding(area="stores", name=name, state="problem", found=found, remedy=remedy)
    made = "" if existing == place.resolve() else ", made by the first run"
    return Finding(area="stores", name=name, state="ok", found=f"{place}{made}")


def _artifacts(store: str) -> Finding:
    name, remedy = "artifacts", "set `store` to a folder or address that can be written, and its credentials"
    if not protocol_known(store):
        return Finding(
            area="stores", name=name, state="problem", found=f"no address of a store: {store}", remedy=remedy
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
        return Finding(area="stores", name=name, state="problem", found=found, remedy=remedy)
    return Finding(area="stores", name=name, state="ok", found=masked(store))


def _mlflow_store(uri: str) -> Finding:
    """MLflow's records: a database that can be opened; a server is looked at with the servers."""
    if uri.startswith(("http:", "https:")):
        return Finding(area="stores", name="mlflow", state="ok", found=f"kept by the server at {masked(uri)}")
    if uri.startswith("sqlite:///"):
        path = Path(uri.removeprefix("sqlite:///"))
        if not path.is_file():
            found = f"{path}, made by the first run or by `grpo databases`"
            checked = _folder("mlflow", path.parent, remedy="set MLFLOW_TRACKING_URI")
            return checked if checked.state == "problem" else checked.model_copy(update={"found": found})
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    try:
        waits = {"connect_timeout": 5} if uri.startswith("postgres") else {}
        engine = create_engine(uri, connect_args=waits)
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA schema_version" if uri.startswith("sqlite") else "SELECT 1")
        engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        reason = str(error).splitlines()[0]
        return Finding(
            area="stores",
            name="mlflow",
            state="problem",
            found=f"{masked(uri)}: {masked(reason, known=uri)}",
            remedy="start the database, or set MLFLOW_TRACKING_URI",
        )
    return Finding(area="stores", name="mlflow", state="ok", found=masked(uri))
