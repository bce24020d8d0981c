"""PostgreSQL database of several servers of one model: connections, tables, and the list of live servers.

Each server has a row that it renews every `HEARTBEAT_S`, and an advisory lock that PostgreSQL releases when the
connection ends. What a server holds (turns in progress, parallel requests) becomes free as soon as its connection is
gone, e.g. because the process was killed, or if its row was not renewed for `_LEASE_S`, e.g. because the machine was
lost.

While the database does not answer, each call raises `APIError` 503 with the code `shared_state_unavailable`. If a
server went on without it, it would start second conversations and grant tokens above the budgets.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg

from grpo.errors import ConfigError
from grpo.serving.background import in_background, stop
from grpo.serving.protocol.api_errors import APIError
from grpo.storage.credentials import masked
from grpo.storage.error_lines import one_line

logger = logging.getLogger(__name__)
VARIABLE = "GRPO_SERVE_DATABASE"
HEARTBEAT_S = 2.0
KEPT_HOURS = 24.0
"""Hours after its last use after which a conversation is deleted and cannot go on."""
_LEASE_S, _TIDY_S = 10.0, 60.0
_TIMEOUT_S = 5.0
_CONNECTIONS = 8
_KEPT_TOKENS, _KEPT_IDS = 20_000_000, 100_000
_MOST_LATER = 100_000
_RETRY_S = 2.0
_SCHEMA = "grpo_serve"
_LOCK = 0x6772706F
_TABLES = Path(__file__).with_name("tables.sql")
_FAILURES = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised if the database has ended a connection and the client does not know it yet
)
_BEAT = (
    "INSERT INTO pods (id, expires, versions) VALUES ($1, now() + $2 * interval '1 second', $3) "
    "ON CONFLICT (id) DO UPDATE SET expires = excluded.expires, versions = excluded.versions RETURNING number"
)
_LIVE = "SELECT id, versions FROM pods WHERE id = ANY (live_pods())"


class SharedDatabase:
    """Database that servers share. `url` is `postgresql://user:password@host/name`.

    Raises `ConfigError` for another URL. `async with` connects. It raises `ConfigError` if the database has tables of
    another version of this project. If the database does not answer, it is tried again until the block ends.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise ConfigError(f"{VARIABLE}={masked(url)[:80]!r}: give postgresql://user:password@host:5432/name")
        try:
            urlsplit(url).port  # noqa: B018
        except ValueError:  # without the error, which has a part of the password
            raise ConfigError(
                f"{VARIABLE}={masked(url)[:80]!r} is not a URL. If the password has one of / ? # [ ] @ : %, "
                "percent-encode it, e.g. / as %2F"
            ) from None
        self.pod = uuid4()
        """Id of this server."""
        self.away: str | None = "not connected yet"
        """Reason if the database does not answer. None while it answers."""
        self.pods: Mapping[UUID, Sequence[Mapping[str, Any]]] = {}
        """Live servers with the versions that they have loaded, as of the last heartbeat."""
        self.versions: Callable[[], list[dict[str, Any]]] = list
        """Versions that this server has loaded."""
        self.on_failure: Callable[[BaseException], None] = log_failure
        """Called with an error that ends the heartbeats of this server, because the other servers then count it as
        dead. An error of the database does not end them."""
        self._told: set[tuple[str, str]] = set()
        self._url = url
        self._pool: asyncpg.Pool | None = None
        self._alive: asyncpg.Connection | None = None
        """Connection that holds this server's lock."""
        self._later: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._due = asyncio.Event()
        self._beating = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        try:
            await self.beat()
        except APIError:
            logger.error(
                "the database of the servers does not answer. No conversation can continue until it does: %s", self.away
            )
        loops = (self._repeat(self.beat, HEARTBEAT_S), self._repeat(self._tidy, _TIDY_S), self._work_off())
        self._tasks = [in_background(loop, self.on_failure) for loop in loops]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await stop(*self._tasks)
        try:
            await self._send_later()
            await self.rows("DELETE FROM pods WHERE id = $1", self.pod)
        except APIError as away:
            logger.warning(
                "this server could not remove its row from the database, so the row expires by itself: %s", away.message
            )
        if self._alive is not None:
            self._alive.terminate()
        if self._pool is not None:
            self._pool.terminate()

    async def rows(self, query: str, *arguments: Any) -> list[Any]:
        """Rows of a statement, which runs in its own transaction. Raises `APIError` 503."""
        if self._pool is None:
            raise self._unavailable()
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._pool.acquire() as connection:
                rows: list[Any] = await connection.fetch(query, *arguments)
        except _FAILURES as error:
            self._note(error)
            raise self._unavailable() from error
        return rows

    def later(self, query: str, *arguments: Any) -> None:
        """Execute a statement as soon as the database answers, after the statements that were queued before it."""
        if len(self._later) >= _MOST_LATER:
            logger.error(
                "a statement for the database was dropped, because %d statements wait already: %s",
                len(self._later),
                query,
            )
            return
        self._later.append((query, arguments))
        self._due.set()

    async def beat(self) -> None:
        """Renew the row of this server with its versions, and read the rows of the others. Raises `APIError` 503."""
        async with self._beating:
            try:
                async with asyncio.timeout(2 * _TIMEOUT_S):
                    await self._connect()
                    assert self._alive is not None
                    versions = self.versions()
                    number = await self._alive.fetchval(_BEAT, self.pod, _LEASE_S, json.dumps(versions))
                    await self._alive.fetchval(_HOLD, _LOCK, number)
                    rows = await self._alive.fetch(_LIVE)
            except (*_FAILURES, ConfigError) as error:
                if self._alive is not None:
                    self._alive.terminate()
                    self._alive = None
                self._note(error)
                if isinstance(error, ConfigError):
                    raise
                raise self._unavailable() from error
        self._told = {(each["version"], each["policy"]) for each in versions}
        self.pods = {row["id"]: json.loads(row["versions"]) for row in rows}
        if self.away is not None:
            logger.info("the database of the servers answers, and %d of them share it", len(self.pods))
            self.away = None
            self._due.set()

    def has_told(self, version: str, policy: str) -> bool:
        """True if this server has told the other servers that it has loaded a version."""
        return (version, policy) in self._told

    async def _connect(self) -> None:
        options: dict[str, Any] = {"timeout": _TIMEOUT_S, "command_timeout": _TIMEOUT_S}
        settings = {"search_path": _SCHEMA, "application_name": "grpo serve"}
        if self._alive is None or self._alive.is_closed():
            self._alive = await asyncpg.connect(self._url, server_settings=settings, **options)
            await _make_tables(self._alive, self._url)
        if self._pool is None:
            self._pool = await asyncpg.create_pool(
                self._url, min_size=0, max_size=_CONNECTIONS, server_settings=settings, **options
            )

    def _note(self, error: BaseException) -> None:
        away = masked(f"{type(error).__name__}: {error}".strip(": "), known=self._url)
        if self.away is None:
            logger.error("the database of the servers does not answer: %s", away)
        self.away = away

    def _unavailable(self) -> APIError:
        message = f"the database that the servers share does not answer. Try again in {_RETRY_S:g} s"
        code = "shared_state_unavailable"
        return APIError(503, message, type="overloaded_error", code=code, retry_after_s=_RETRY_S)

    async def _repeat(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await work()
            except (APIError, ConfigError):
                continue  # it was logged, and `away` has the reason

    async def _tidy(self) -> None:
        await self.rows("SELECT tidy($1, $2, $3)", KEPT_HOURS, _KEPT_TOKENS, _KEPT_IDS)

    async def _work_off(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._send_later()
            except APIError:
                continue  # the next heartbeat that succeeds, or the next statement, begins again

    async def _send_later(self) -> None:
        while self._later:
            query, arguments = self._later[0]
            await self.rows(query, *arguments)
            self._later.popleft()


def log_failure(error: BaseException) -> None:
    """Log the error that ended the heartbeats of a server."""
    logger.error("this server cannot send its heartbeat to the other servers any more: %s", one_line(error))


_HOLD = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = $1::int::oid "
    "AND objid = $2::int::oid AND pid = pg_backend_pid()) OR pg_try_advisory_lock($1::int, $2::int)"
)
"""Take the lock of this server, unless its connection holds it already."""


async def _make_tables(connection: asyncpg.Connection, url: str) -> None:
    """Create the tables, one server at a time. Raises `ConfigError` if there are tables of another version."""
    script = _TABLES.read_text(encoding="utf-8")
    layout = hashlib.sha256(script.encode()).hexdigest()[:12]
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await connection.fetchval("SELECT to_regclass($1) IS NULL", f"{_SCHEMA}.layout"):
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
            await connection.execute(f"CREATE TABLE layout AS SELECT '{layout}' AS name")
            await connection.execute(script)
        known = await connection.fetchval("SELECT name FROM layout")
    if known != layout:
        raise ConfigError(
            f"the database {masked(url)} has tables of another version of grpo ({known}, not {layout}). Give the "
            f"servers of each version a database of their own, or stop them all and DROP SCHEMA {_SCHEMA} CASCADE"
        )
