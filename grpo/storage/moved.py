"""Homes that were moved, renamed or copied: addresses of files in MLflow's database.

MLflow stores absolute addresses, such as `file:///old/runs/mlartifacts/grpo`, and writes new models to them. If the
database of a home names another place, the home is refused until `grpo migrate --moved` has rewritten these addresses.
If the home is a copy, only the copy's own database is changed. Everything else in a home is found by digest or by a
path relative to the home.

An experiment with an address of another form, e.g. `s3://…` or `file:///data/logs`, is left as it is, because its files
are not in the home.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from grpo.errors import ConfigError
from grpo.storage.files import read_json, write_atomically
from grpo.storage.home import home

ARTIFACTS = "mlartifacts"
"""Folder of a home with the files of MLflow's runs and models."""
ADDRESSES = {
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "logged_models": ("artifact_location",),
    "model_versions": ("source", "storage_location"),
    "trace_tags": ("value",),
}
"""Columns of MLflow's tables with addresses of files."""
FILE = "file://"


def former_place(database: Path) -> Path | None:
    """Home that the database of this home names as its own. None if the home was not moved, or has no database."""
    return next(iter(_former_places(database)), None)


def check_not_moved(uri: str) -> None:
    """Raise `ConfigError` if this is the database of this home, and it names another home, or was moved elsewhere."""
    if uri != f"sqlite:///{home()}/mlflow.db":
        return
    if (former := former_place(home() / "mlflow.db")) is not None:
        raise ConfigError(f"{moved(former)}. {MIGRATE}")
    if (database := read_json(_registry_record(), dict).get("moved")) is not None:
        raise ConfigError(
            f"the registry of this home was moved to {database}. Set MLFLOW_TRACKING_URI to it or to its server, or "
            f"remove {_registry_record()} to go back to the state before"
        )


def note_registry(database: str) -> None:
    """Record that the registry of this home is in another database now, whose address has no password."""
    write_atomically(_registry_record(), json.dumps({"moved": database}))


MIGRATE = "Call `grpo migrate --moved`, so that its records name the new place"


def moved(former: Path) -> str:
    """Error message for a moved home, without the remedy."""
    return f"this home was moved or copied from {former} to {home()}, and MLflow would write models to {former}"


def rewrite_places(database: Path) -> list[Path]:
    """Let MLflow's database name this home, and return the places that it named before.

    Call it inside of `grpo.storage.databases.exclusive`. All addresses change in one transaction, so that a killed
    process changes all or none.
    """
    former = _former_places(database)
    if not former:
        return []
    write_atomically(_record(), json.dumps(sorted({*map(str, (*former_homes(), *former))})))
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        for place in former:
            for before in {f"{place}", quote(str(place))}:
                _replace(connection, f"{FILE}{before}/{ARTIFACTS}", f"{FILE}{home()}/{ARTIFACTS}")
    return former


def former_homes() -> list[str]:
    """Places where this home was before `rewrite_places`."""
    return [str(place) for place in read_json(_record(), list)]


def in_this_home(document: Any) -> Any:
    """A document with each path in a former home as the path in this one.

    /old/runs/artifacts/model/3fa1    →    /new/runs/artifacts/model/3fa1
    """
    former = sorted(former_homes(), key=len, reverse=True)  # if one is inside of another, the inner one comes first
    return _in_place(document, former) if former else document


def _in_place(value: Any, former: list[str]) -> Any:
    if isinstance(value, dict):
        return {name: _in_place(item, former) for name, item in value.items()}
    if isinstance(value, list):
        return [_in_place(item, former) for item in value]
    if isinstance(value, str):
        places = [str(home()), *former]
        place = next((place for place in places if value == place or value.startswith(f"{place}/")), None)
        return value if place is None else f"{home()}{value.removeprefix(place)}"
    return value


def missing_models(database: Path) -> list[str]:
    """Addresses in this home of registered models without files, because these were left in another place."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT artifact_location FROM logged_models").fetchall()
    own = f"{FILE}{home()}/{ARTIFACTS}/"
    return sorted(uri for (uri,) in rows if uri.startswith(own) and not Path(uri.removeprefix(FILE)).is_dir())


def _former_places(database: Path) -> list[Path]:
    """Other homes in the addresses of experiments, which end in `mlartifacts` and the experiment's name or id.

    A place that is a link to this home is this home.
    """
    if not database.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            rows = connection.execute("SELECT experiment_id, name, artifact_location FROM experiments").fetchall()
    except sqlite3.DatabaseError:  # no tables yet, unreadable or damaged: the check of the database reports it
        return []
    places = dict.fromkeys(place for row in rows for place in _home_of(*map(str, row)))
    return [place for place in places if Path(os.path.realpath(place)) != home()]


def _home_of(number: str, name: str, location: str) -> Iterator[Path]:
    for ending in (name, number):
        suffix = f"/{ARTIFACTS}/{ending}"
        if location.startswith(f"{FILE}/") and (path := unquote(location.removeprefix(FILE))).endswith(suffix):
            yield Path(path.removesuffix(suffix))


def _replace(connection: sqlite3.Connection, before: str, after: str) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table, columns in ADDRESSES.items():
        for column in columns if table in tables else ():
            connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608 - names of ADDRESSES
                f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                (after, len(before) + 1, before, len(before) + 1, f"{before}/"),
            )


def _record() -> Path:
    return home() / "moved.json"


def _registry_record() -> Path:
    return home() / "registry.json"
