"""The databases in which MLflow and Prefect keep their records: made or brought up to date by one process at a time.

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

from grpo.errors import ConfigError
from grpo.storage.credentials import masked
from grpo.storage.files import storage_errors
from grpo.storage.locks import file_lock

_ADVISORY_LOCK = 0x6772706F
"""The letters grpo: PostgreSQL's advisory locks are numbers, of each database its own."""
_POLL_S = 0.1
_SQLITE = "sqlite:///"


def is_database(uri: str) -> bool:
    """Whether this is the address of a database, and not of a server that looks after its own."""
    return uri.startswith(("sqlite:", "postgresql"))


@contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Keep every other process out of a database while the block runs; a process that dies holds nothing.

    What is not a database is left alone. Raises `ConfigError` when the driver is missing, `ConnectionError` when
    PostgreSQL lets nobody in.
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
    """Create MLflow's tables, or bring them to the version of the installed MLflow.

    Take a backup before the second. Raises `ConfigError` when the database cannot be used.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with exclusive(uri):
            if not make_tracking(uri):
                _upgrade(uri)
    except (SQLAlchemyError, ConnectionError) as error:
        raise ConfigError(f"MLflow's database {masked(uri)} cannot be used: {error}") from error


def make_tracking(uri: str) -> bool:
    """Make MLflow's tables in a SQLite file that is not there yet, whole or not at all; returns whether it was made.

    MLflow cannot go on with tables that it has made in part, as on a disk that was full. Called inside of `exclusive`.
    """
    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or path.exists():
        return False
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with storage_errors(str(path)):
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

    mlflow_db(["upgrade", uri], standalone_mode=False)  # in this process: arguments of others can be read


@contextmanager
def _advisory_lock(uri: str) -> Iterator[None]:
    """The lock belongs to a connection: PostgreSQL frees it when the connection ends, however it ends.

    It is asked for again and again: one who waits inside a statement would hold up `CREATE INDEX CONCURRENTLY` of the
    one who migrates, for ever.
    """
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import OperationalError
    from sqlalchemy.pool import NullPool

    url = make_url(uri).set(drivername="postgresql+psycopg2")
    try:
        engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{masked(uri)} needs a driver ({error}); pip install 'grpo[postgres]'") from error
    try:
        connection = engine.connect()
    except OperationalError as error:
        raise ConnectionError(f"PostgreSQL at {masked(uri)} lets nobody in: {error.orig}") from error
    with connection:
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _ADVISORY_LOCK}):
            time.sleep(_POLL_S)
        yield
