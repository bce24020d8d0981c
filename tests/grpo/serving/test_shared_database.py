"""The database that servers share: away and back, other tables, other addresses."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import pytest

from grpo.config.serving import CallerLimits
from grpo.errors import ConfigError
from grpo.serving.access.callers import Caller
from grpo.serving.access.limits import Limiter
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.shared.database import SharedDatabase
from grpo.serving.shared.usage import SharedUsage
from tests.e2e.postgres import Cluster
from tests.grpo.serving.databases import cluster, new_database

__all__ = ["cluster"]
_CALLER = Caller(name="a", key_hash="a", scopes=frozenset({"chat"}), limits=CallerLimits(tokens_per_day=10))


def test_a_database_that_is_away_answers_503_and_returns(cluster: Cluster):
    """Its connections end and it takes no others: no budget is given away. A refund waits until it is back."""
    url = new_database(cluster)
    name = url.rpartition("/")[2]

    ends = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"

    def let_in(allowed: bool) -> None:
        cluster.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {allowed}')
        if not allowed:  # else a heartbeat may have connected already, and its connection would be ended
            cluster.query("postgres", ends)

    async def play() -> None:
        async with SharedDatabase(url) as database:
            limiter = Limiter(SharedUsage(database))
            reservation = await limiter.reserve(_CALLER, 8)
            await asyncio.to_thread(let_in, False)
            with pytest.raises(APIError) as away:
                await limiter.reserve(_CALLER, 1)
            assert (away.value.status, away.value.code) == (503, "shared_state_unavailable")
            assert away.value.retry_after_s is not None
            assert database.away is not None
            with pytest.raises(APIError):
                await reservation.settle(3)
            await asyncio.to_thread(let_in, True)
            await database.beat()
            assert database.away is None
            while cluster.query(name, "SELECT tokens FROM grpo_serve.budgets WHERE length(period) = 10") != [(3,)]:
                await asyncio.sleep(0.02)
            await limiter.reserve(_CALLER, 7)

    asyncio.run(play())


def test_heartbeats_that_end_by_an_error_are_reported(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """An error of the database does not end them. Any other would leave a server that the others count as dead."""
    monkeypatch.setattr("grpo.serving.shared.database.HEARTBEAT_S", 0.01)

    async def play() -> BaseException:
        failures: asyncio.Queue[BaseException] = asyncio.Queue()
        database = SharedDatabase(new_database(cluster))
        database.on_failure = failures.put_nowait
        async with database:
            database.versions = lambda: [{}["version"]]
            return await asyncio.wait_for(failures.get(), 240)

    assert isinstance(asyncio.run(play()), KeyError)


def test_tables_of_another_version_are_an_error(cluster: Cluster):
    """Servers of two versions do not write into one table."""

    async def open_twice() -> None:
        url = new_database(cluster)
        async with SharedDatabase(url) as database:
            await database.rows("UPDATE layout SET name = 'another'")
        async with SharedDatabase(url):
            raise AssertionError("it is opened")

    with pytest.raises(ConfigError, match="has tables of another version of grpo"):
        asyncio.run(open_twice())


def test_another_address_is_an_error_without_its_password():
    """SQLAlchemy's form of a driver among them."""
    with pytest.raises(ConfigError, match=r"give postgresql://") as refused:
        SharedDatabase("postgresql+asyncpg://grpo:secret@db/serving")
    assert "secret" not in str(refused.value)


_TERMINATED = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"


def test_a_connection_that_has_been_ended_answers_503_before_its_end_arrives(cluster: Cluster):
    """The last message of PostgreSQL has arrived, the end of the connection has not; the next one works."""
    url = urlsplit(new_database(cluster))
    clients: list[asyncio.StreamWriter] = []
    forwarding: list[asyncio.Task[None] | None] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.append(writer)
        forwarding.append(asyncio.current_task())
        their_reader, their_writer = await asyncio.open_connection(url.hostname, url.port)
        await asyncio.gather(pump(reader, their_writer), pump(their_reader, writer))

    async def play() -> None:
        proxy = await asyncio.start_server(forward, "127.0.0.1")
        host = f"{url.username}:{url.password or ''}@127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with SharedDatabase(urlunsplit(url._replace(netloc=host))) as database:
            assert (await database.rows("SELECT 1 AS one"))[0]["one"] == 1
            clients[-1].write(b"E" + (4 + len(_TERMINATED)).to_bytes(4) + _TERMINATED)
            await asyncio.sleep(0.2)
            with pytest.raises(APIError) as away:
                await database.rows("SELECT 1")
            assert away.value.status == 503
            assert (await database.rows("SELECT 2 AS two"))[0]["two"] == 2
            proxy.close()
        await proxy.wait_closed()
        await asyncio.gather(*filter(None, forwarding), return_exceptions=True)

    asyncio.run(play())
