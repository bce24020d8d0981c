"""Schemas of databases: the migration that a database has, and the migrations of the installed package.

The migrations are read as texts, because importing them takes seconds, and every command compares the schemas.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from grpo.errors import ConfigError, install_command
from grpo.storage.credentials import masked

MIGRATION = "Make a backup, because a migration cannot be undone, and call `grpo migrate`"
_REVISION = re.compile(r'^(down_)?revision = "(\w{1,64})"$', re.MULTILINE)
_SQLITE = "sqlite:///"
_TABLE = "alembic_version"
_QUERY = "SELECT version_num FROM alembic_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Migration of a database."""

    database: str
    """The database in words, without a password."""
    current: str | None
    """Revision of the database, or None if it has no tables."""
    newest: str
    """Revision of the installed package."""

    @property
    def change(self) -> str | None:
        """Description of what a migration does, or None if it has nothing to do."""
        if self.current is None:
            return "is created"
        return f"is migrated from {self.current} to {self.newest}" if self.current != self.newest else None

    @property
    def older(self) -> str | None:
        """Sentence about a database that an earlier release has written, without the remedy."""
        if self.current in (None, self.newest):
            return None
        return f"{self.database} has schema {self.current} of an earlier release, and the installed one {self.newest}"


def require_newest(uri: str) -> None:
    """Raise `ConfigError` if MLflow's database at `uri` does not have the schema of the installed MLflow.

    MLflow migrates some older databases when it opens them, without being asked. Nobody has made a backup then, and
    machines with the earlier release cannot use the database any more.
    """
    if (older := mlflow_schema(uri).older) is not None:
        raise ConfigError(f"{older}. {MIGRATION}")


def mlflow_schema(uri: str) -> Schema:
    """Schema of MLflow's database, see `schema`."""
    return schema("MLflow", uri, "store/db_migrations/versions")


def schema(name: str, uri: str, folder: str) -> Schema:
    """Schema of the database at `uri`, which is only read. `folder` has the migrations, below the package `name`.

    Raises `ConfigError` if the database cannot be opened, or if the package does not know its migration, because a
    migration cannot be undone.
    """
    uri = uri.replace("+aiosqlite", "").replace("+asyncpg", "+psycopg2")
    database = f"the database of {name}, {masked(uri)},"
    revisions, followed = _migrations(name, folder)
    current = _revision_of_file(database, uri) if uri.startswith(_SQLITE) else _revision_on_server(database, uri)
    if current is not None and current not in revisions:
        version = importlib.metadata.version(name.lower())
        raise ConfigError(
            f"{database} has schema {current}, which the installed {name} {version} does not know, because a newer "
            f"{name} migrated it, or another program uses it. Install that release of {name}, or restore the backup "
            "from before"
        )
    (newest,) = revisions - followed
    return Schema(database=database, current=current, newest=newest)


def _migrations(name: str, folder: str) -> tuple[set[str], set[str]]:
    """Revisions of an installed package, and those that another one follows."""
    package = importlib.util.find_spec(name.lower())
    assert package is not None
    assert package.origin is not None
    revisions: tuple[set[str], set[str]] = set(), set()
    for file in (Path(package.origin).parent / folder).glob("*.py"):
        for follows, revision in _REVISION.findall(file.read_text(encoding="utf-8")):
            revisions[bool(follows)].add(revision)
    return revisions


def refuse_empty(database: str, uri: str) -> None:
    """Raise `ConfigError` if a database is a file of 0 bytes, e.g. after a full disk or a broken copy.

    SQLite takes such a file for a new database, so that a package would create its tables there, and every record
    would be gone without a word.
    """
    path = Path(uri.removeprefix(_SQLITE))
    if uri.startswith(_SQLITE) and path.is_file() and not path.stat().st_size:
        raise ConfigError(
            f"{database} has 0 bytes, so that its records are lost. Restore a backup, or remove the file if it never "
            "had any"
        )


def _revision_of_file(database: str, uri: str) -> str | None:
    refuse_empty(database, uri)
    path = Path(uri.removeprefix(_SQLITE)).absolute()
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [_TABLE]).fetchall()
            return next((str(row[0]) for row in connection.execute(_QUERY)), None) if tables else None
    except sqlite3.Error as error:
        if not os.access(path, os.R_OK):
            raise ConfigError(f"{database} may not be read. Fix its permissions") from error
        is_locked = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        remedy = "Another program holds it open. Try again when it has ended" if is_locked else "Restore a backup"
        raise ConfigError(f"{database} cannot be read: {error}. {remedy}") from error


def _revision_on_server(database: str, uri: str) -> str | None:
    from sqlalchemy import create_engine, inspect
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        with create_engine(uri, poolclass=NullPool).connect() as connection:
            if not inspect(connection).has_table(_TABLE):
                return None
            return next((str(row[0]) for row in connection.exec_driver_sql(_QUERY)), None)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{database} needs a driver ({error}). Call {install_command('postgres')}") from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        raise ConfigError(f"{database} cannot be read: {reason}. Check its address and login") from error
