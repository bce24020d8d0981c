"""Address and schema of Prefect's database."""

from __future__ import annotations

import os
from pathlib import Path

from grpo.errors import ConfigError
from grpo.storage.schemas import Schema, schema

VARIABLES = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")
"""Variables with the address of the database of Prefect's server. If both are set, Prefect takes the first one."""
EXAMPLE = "postgresql+asyncpg://USER:PASSWORD@HOST/NAME"
_ASYNC = ("postgresql+asyncpg://", "sqlite+aiosqlite://")


def database_variable() -> str:
    """Name of the variable that names Prefect's database, or that may name it if none does."""
    return next((name for name in VARIABLES if name in os.environ), VARIABLES[-1])


def require_async_driver(uri: str) -> None:
    """Raise `ConfigError` unless the address names a driver that Prefect's server can use. It needs asynchronous ones.

    SQLAlchemy opens `postgresql://…` with another driver, so that the database looks sound until the server starts. The
    message does not repeat the address, because it may have a password.
    """
    if not uri.startswith(_ASYNC):
        raise ConfigError(
            f"{database_variable()} does not begin with {' or '.join(_ASYNC)}, and Prefect's server can use no other "
            f"driver. Set it to {EXAMPLE} or to sqlite+aiosqlite:////PATH"
        )


def prefect_database(home: Path) -> str:
    """Address of Prefect's database, without its driver, as other programs open it. See `require_async_driver`."""
    uri = os.environ.get(database_variable(), f"sqlite+aiosqlite:///{home / 'prefect' / 'prefect.db'}")
    require_async_driver(uri)
    scheme, separator, rest = uri.partition("://")
    return scheme.partition("+")[0] + separator + rest


def prefect_schema(uri: str) -> Schema:
    """Schema of Prefect's database. Prefect has different migrations for each kind of database."""
    kind = "sqlite" if uri.startswith("sqlite") else "postgresql"
    return schema("Prefect", uri, f"server/database/_migrations/versions/{kind}")
