"""The databases in which MLflow and Prefect keep their records: made or brought up to date by one process at a time.

Two processes that create the tables of one database at once break it, in SQLite as in PostgreSQL.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo.credentials import masked
from grpo.errors import ConfigError
from grpo.locks import file_lock

_ADVISORY_LOCK = 0x6772706F
"""The letters grpo: PostgreSQL's advisory locks are numbers, of each database its own."""
_POLL_S = 0.1


def is_database(uri: str) -> bool:
    """Whether this is the address of a database, and not of a server that looks after its own."""
    return uri.startswith(("sqlite:", "postgresql"))


@contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Keep every other process out of a database while the block runs; a process that dies holds nothing.

    What is not a database is left alone. Raises `ConfigError` when the driver is missing, `ConnectionError` when
    PostgreSQL lets nobody in.
    """
    if uri.startswith("sqlite:///"):
        with file_lock(Path(uri.removeprefix("sqlite:///")).with_suffix(".lock")):
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
    from mlflow.db import commands as mlflow_db
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with exclusive(uri):
            mlflow_db(["upgrade", uri], standalone_mode=False)  # in this process: arguments of others can be read
    except (SQLAlchemyError, ConnectionError) as error:
        raise ConfigError(f"MLflow's database {masked(uri)} cannot be used: {error}") from error


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
