"""Transactions of a Prefect server on SQLite, which take the write lock when they begin.

Prefect begins most transactions without a lock and takes it at their first write. If another transaction has written
between the first read and that write, SQLite answers "database is locked" at once, because what was read is out of
date. No timeout helps then. On a busy machine the API answers 503, and Prefect drops the event of a state after four
attempts without a pause, so that no automation restarts the run. A transaction that takes the lock when it begins waits
for up to a minute instead.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import set_database_config
from prefect.server.utilities.database import get_dialect
from prefect.settings import get_current_settings
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


class LockedTransactions(AioSqliteConfiguration):
    """SQLite as Prefect uses it, with `BEGIN IMMEDIATE` for each transaction."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        """Begin a transaction with the write lock, even if `with_for_update` does not ask for it."""
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def lock_transactions() -> None:
    """Let the Prefect server of this process use `LockedTransactions`, if its database is SQLite."""
    url = get_current_settings().server.database.connection_url
    if url is not None and get_dialect(url.get_secret_value()).name == "sqlite":
        set_database_config(LockedTransactions(connection_url=url.get_secret_value()))
