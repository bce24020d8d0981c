"""Schemas of databases: the migration that a database has, and the newest one of the installed package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo.errors import ConfigError
from grpo.storage.credentials import masked

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Migration of a database."""

    current: str | None
    """Revision of the database, or None if it has no tables."""
    newest: str
    """Revision of the installed package."""

    @property
    def change(self) -> str | None:
        """Description of what a migration does, or None if it has nothing to do."""
        if self.current is None:
            return "is created"
        return None if self.current == self.newest else f"is migrated from {self.current} to {self.newest}"


def schema(name: str, uri: str, scripts: ScriptDirectory) -> Schema:
    """Schema of the database at `uri`, which is only read. `scripts` are the migrations of its package.

    Raises `ConfigError` if the database cannot be opened, or if a newer package migrated it, because a migration cannot
    be undone.
    """
    from alembic.runtime.migration import MigrationContext
    from alembic.util import CommandError
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    newest = scripts.get_current_head()
    assert newest is not None, f"{name} has no migrations"
    try:
        engine = create_engine(_read_only(uri), poolclass=NullPool)
        with engine.connect() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
    except SQLAlchemyError as error:
        raise ConfigError(
            f"the database of {name}, {masked(uri)}, cannot be read: {error}. Check its address and login"
        ) from error
    try:
        if current is not None:
            scripts.get_revision(current)
    except CommandError as error:
        raise ConfigError(
            f"the database of {name}, {masked(uri)}, has schema {current}, which the installed {name} does not "
            f"know, because a newer {name} migrated it. Install that release, or restore the backup from before"
        ) from error
    return Schema(current=current, newest=newest)


def _read_only(uri: str) -> str:
    """URI that opens a SQLite file without writing to it, and a driver that does not need an event loop."""
    uri = uri.replace("+aiosqlite", "").replace("+asyncpg", "+psycopg2")
    path = uri.removeprefix("sqlite:///")
    return uri if path == uri else f"sqlite:///file:{path}?mode=ro&uri=true"
