"""Address and schema of Prefect's database."""

from __future__ import annotations

import os
from pathlib import Path

from grpo.errors import ConfigError
from grpo.storage.credentials import masked
from grpo.storage.schemas import Schema, schema

ADDRESS = "PREFECT_API_DATABASE_CONNECTION_URL"
"""Variable with the address of the database of Prefect's server."""
_ASYNC = {"sqlite+aiosqlite", "postgresql+asyncpg"}


def require_async_driver(uri: str) -> None:
    """Raise `ConfigError` unless the address names a driver that Prefect's server can use. It needs asynchronous ones.

    SQLAlchemy opens `postgresql://…` with another driver, so that the database looks sound until the server starts.
    """
    scheme, _, rest = uri.partition("://")
    if scheme not in _ASYNC:
        named = f"postgresql+asyncpg://{rest}" if scheme.startswith("postgres") else f"sqlite+aiosqlite://{rest}"
        raise ConfigError(
            f"{ADDRESS} is {masked(uri)}, but Prefect's server needs an asynchronous driver. Set it to {masked(named)}"
        )


def prefect_database(home: Path) -> str:
    """Address of Prefect's database, without its driver, as other programs open it. See `require_async_driver`."""
    uri = os.environ.get(ADDRESS, f"sqlite+aiosqlite:///{home / 'prefect' / 'prefect.db'}")
    require_async_driver(uri)
    scheme, separator, rest = uri.partition("://")
    return scheme.partition("+")[0] + separator + rest


def prefect_schema(uri: str) -> Schema:
    """Schema of Prefect's database. Prefect has different migrations for each kind of database."""
    kind = "sqlite" if uri.startswith("sqlite") else "postgresql"
    return schema("Prefect", uri, f"server/database/_migrations/versions/{kind}")
