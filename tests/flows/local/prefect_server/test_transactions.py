"""Transactions of Prefect's server on SQLite: two that read and then write wait for each other."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import provide_database_interface, temporary_database_config

from grpo_local.prefect_server.transactions import LockedTransactions, lock_transactions


async def _count_to_two(database: AioSqliteConfiguration, *, patience_s: float) -> int:
    """Let two transactions read a count before either writes it, if they may; the count that they end at.

    The first waits `patience_s` for the other to have read it.
    """
    engine = await database.engine()
    both = asyncio.Barrier(2)

    async def add_one() -> None:
        async with await database.session(engine) as session, database.begin_transaction(session):
            count = (await session.execute(sa.text("SELECT count FROM counts"))).scalar_one()
            with suppress(TimeoutError, asyncio.BrokenBarrierError):  # the other waits for this one's lock
                await asyncio.wait_for(both.wait(), patience_s)
            await session.execute(sa.text(f"UPDATE counts SET count = {count + 1}"))

    async with await database.session(engine) as session, database.begin_transaction(session):
        await session.execute(sa.text("CREATE TABLE counts AS SELECT 0 AS count"))
    await asyncio.gather(add_one(), add_one())
    async with await database.session(engine) as session:
        return int((await session.execute(sa.text("SELECT count FROM counts"))).scalar_one())


def test_two_transactions_that_read_and_write_wait_for_each_other(tmp_path: Path):
    """With Prefect's own transactions the second write is refused at once."""
    ours = LockedTransactions(f"sqlite+aiosqlite:///{tmp_path}/ours.db")
    theirs = AioSqliteConfiguration(f"sqlite+aiosqlite:///{tmp_path}/theirs.db")
    assert asyncio.run(_count_to_two(ours, patience_s=0.5)) == 2
    with pytest.raises(sa.exc.OperationalError, match="database is locked"):
        asyncio.run(_count_to_two(theirs, patience_s=60.0))


def test_the_server_uses_them_on_sqlite_and_not_on_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the address of its database."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    for url, is_ours in ((f"sqlite+aiosqlite:///{tmp_path}/p.db", True), ("postgresql+asyncpg://a:b@c/d", False)):
        with (
            temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: url}),
            temporary_database_config(None),
        ):
            lock_transactions()
            assert isinstance(provide_database_interface().database_config, LockedTransactions) == is_ours
