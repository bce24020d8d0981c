"""Upgrade of a home to the installed versions: `grpo migrate`. With `--dry-run` it says what it would change.

Databases are migrated by the packages that own them. Files that an earlier version of this package has written are
signed, made private, or named if this version does not read them any more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from grpo.errors import ConfigError
from grpo.log.log_tables import find_tables
from grpo.log.tables import SCHEMA_VERSIONS, VERSION_KEY
from grpo.storage.credentials import masked
from grpo.storage.databases import exclusive, is_database, upgrade_tracking
from grpo.storage.files import storage_errors
from grpo.storage.home import tighten
from grpo.storage.schemas import mlflow_schema
from grpo.store_move import sign_store
from grpo_local.schemas import prefect_database, prefect_schema


def upgrade(home: Path, *, dry_run: bool = False) -> Iterator[str]:
    """Upgrade the databases, stores and files of a home. Yields a sentence for each change.

    With `dry_run` nothing is changed, and the sentences say what would be changed. Raises `ConfigError` if a database
    cannot be used, or if a newer release has migrated it. Then the other database is not migrated either.
    """
    if not dry_run:
        for _ in (*_mlflow(dry_run=True), *_prefect(home, dry_run=True)):
            pass
        with storage_errors(str(home)):
            home.mkdir(parents=True, exist_ok=True)
    yield from _mlflow(dry_run=dry_run)
    yield from _prefect(home, dry_run=dry_run)
    for store in (home / "artifacts", home / "models"):
        if store.is_dir() and any(store.iterdir()) and (signed := sign_store(str(store), dry_run=dry_run)):
            yield f"{signed} documents of {store}, which an earlier version wrote without a signature, are signed"
    if home.is_dir() and (changed := tighten(home, dry_run=dry_run)):
        yield f"{changed} files and folders of {home}, which others can read, become private"
    yield from _unreadable_tables(home / "served")


def _mlflow(*, dry_run: bool) -> Iterator[str]:
    uri = os.environ["MLFLOW_TRACKING_URI"]
    if is_database(uri) and (change := _change("MLflow", uri)) is not None:
        if not dry_run:
            upgrade_tracking(uri)
        yield f"the database of MLflow, {masked(uri)}, {change}"


def _prefect(home: Path, *, dry_run: bool) -> Iterator[str]:
    """Upgrade Prefect's database. Servers on other machines upgrade their own."""
    if "PREFECT_API_URL" in os.environ:
        return
    uri = prefect_database(home)
    if (change := _change("Prefect", uri)) is None:
        return
    if not dry_run:
        _upgrade_prefect(uri)
    yield f"the database of Prefect, {masked(uri)}, {change}"


def _upgrade_prefect(uri: str) -> None:
    command = [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "--yes"]
    try:
        with exclusive(uri):
            process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except ConnectionError as error:
        raise ConfigError(f"Prefect's database cannot be used: {error}") from error
    if process.returncode:
        output = masked(process.stdout.strip()[-2000:], known=uri)
        raise ConfigError(f"Prefect's database {masked(uri)} cannot be created or migrated:\n{output}")


def _change(name: Literal["MLflow", "Prefect"], uri: str) -> str | None:
    """Sentence about what a migration of a database does. None if it has the schema of the installed package."""
    file = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite") and not file.exists():
        return "is created"
    return (mlflow_schema if name == "MLflow" else prefect_schema)(uri).change


def _unreadable_tables(folder: Path) -> Iterator[str]:
    """A sentence for each version of the serving log that this release does not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    versions: Counter[str] = Counter()
    for table in find_tables(folder):
        try:
            metadata = pq.read_metadata(table.path).metadata or {}
        except (OSError, pa.ArrowException):
            continue  # damaged: `grpo verify-log` names it
        versions[metadata.get(VERSION_KEY, b"none").decode(errors="replace")] += 1
    for version in sorted(versions.keys() - set(SCHEMA_VERSIONS)):
        yield (
            f"{versions[version]} files of the serving log {folder} have version {version}, which this release does "
            f"not read (it reads {', '.join(SCHEMA_VERSIONS)}). Read them with the release that wrote them"
        )
