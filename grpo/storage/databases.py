"""Creation and migration of MLflow's and Prefect's databases, by one process at a time.

Two processes that create the tables of one database at once break it, in SQLite as in PostgreSQL.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from grpo.errors import ConfigError, install_command
from grpo.storage.credentials import masked
from grpo.storage.files import storage_errors
from grpo.storage.locks import file_lock
from grpo.storage.schemas import refuse_empty

_ADVISORY_LOCK = 0x6772706F
"""ASCII of `grpo`, because PostgreSQL names an advisory lock by a number within one database."""
_POLL_S = 0.1
_SQLITE = "sqlite:///"


def is_database(uri: str) -> bool:
    """Return True for the URI of a database, and False for the URI of a server."""
    return uri.startswith(("sqlite:", "postgresql"))


def is_new(uri: str) -> bool:
    """Return True for a SQLite file that nothing has made yet. Opening it would make it."""
    return uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).is_file()


@contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Lock a database against other processes while the block runs. A killed process releases the lock.

    The URI of a server is not locked. Raises `ConfigError` if the driver is missing, and `ConnectionError` if
    PostgreSQL refuses the connection.
    """
    if uri.startswith(_SQLITE):
        with file_lock(Path(uri.removeprefix(_SQLITE)).with_suffix(".lock")):
            yield
    elif uri.startswith("postgresql"):
        with _advisory_lock(uri):
            yield
    else:
        yield


def upgrade_tracking(uri: str) -> None:
    """Create MLflow's tables, or migrate them to the installed MLflow. Take a backup before a migration.

    Raises `ConfigError` if the database cannot be used.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with exclusive(uri):
            if not make_tracking(uri):
                _upgrade(uri)
    except (SQLAlchemyError, ConnectionError) as error:
        raise ConfigError(f"MLflow's database {masked(uri)} cannot be used: {error}") from error


def make_tracking(uri: str) -> bool:
    """Create a missing SQLite file with MLflow's tables, and return True if it was created.

    The file appears complete or not at all, because MLflow cannot continue with incomplete tables, e.g. after a full
    disk. Call it inside of `exclusive`. Raises `ConfigError` if the file has 0 bytes.
    """
    refuse_empty(f"the database of MLflow, {masked(uri)},", uri)
    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or path.exists():
        return False
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with storage_errors(str(path)):
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL, 0o600))  # SQLite gives its own files the same mode
            _upgrade(f"{_SQLITE}{partial}")
            with closing(sqlite3.connect(partial)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            os.replace(partial, path)
    finally:
        for left in path.parent.glob(f"{partial.name}*"):
            left.unlink()
    return True


def _upgrade(uri: str) -> None:
    from mlflow.db import commands as mlflow_db

    mlflow_db(["upgrade", uri], standalone_mode=False)  # in this process, so that no process list shows the URI


@contextmanager
def _advisory_lock(uri: str) -> Iterator[None]:
    """Hold an advisory lock, which PostgreSQL releases with the connection.

    Polled, because a statement that waits for the lock would block the holder's `CREATE INDEX CONCURRENTLY` forever.
    """
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import OperationalError
    from sqlalchemy.pool import NullPool

    url = make_url(uri).set(drivername="postgresql+psycopg2")
    try:
        engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{masked(uri)} needs a driver ({error}). Call {install_command('postgres')}") from error
    try:
        connection = engine.connect()
    except OperationalError as error:
        raise ConnectionError(f"cannot connect to PostgreSQL at {masked(uri)}: {error.orig}") from error
    with connection:
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _ADVISORY_LOCK}):
            time.sleep(_POLL_S)
        yield
