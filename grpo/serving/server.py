"""Server of one model: starts and stops all its parts together.

start    log → first version → ready
SIGTERM  refuse new requests → wait until the running ones end → stop the engine → close the log
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import uvicorn
from fastapi import FastAPI

from grpo.config.serving import ServerSettings
from grpo.log.folder import ServedLog
from grpo.serving.access.budgets import TokenBudgets
from grpo.serving.access.connections import Connections, default_connections
from grpo.serving.access.guard import Authenticator
from grpo.serving.access.limits import Limiter
from grpo.serving.access.refused_work import RefusedWork
from grpo.serving.access.usage import LocalUsage
from grpo.serving.access.uvicorn_protocols import bounded_protocols
from grpo.serving.background import in_background, stop
from grpo.serving.engine.rollouts import Rollouts
from grpo.serving.engine.served_model import ServedModel
from grpo.serving.engine.versions import Versions
from grpo.serving.erasure import ErasableLog
from grpo.serving.garbage import frozen_survivors
from grpo.serving.metrics import Metrics
from grpo.serving.mirror.mirror import Mirror
from grpo.serving.request_counts import RequestCounts
from grpo.serving.requests.service import Service
from grpo.serving.routes.app import ServerState, create_app
from grpo.serving.routes.events import watch_jobs
from grpo.serving.routes.operations import Orchestrator
from grpo.serving.shared.conversations import SharedConversations
from grpo.serving.shared.database import SharedDatabase
from grpo.serving.shared.usage import SharedUsage

NextVersion = Callable[[str], ServedModel | None]
"""Look-up that loads a newer version than the one that answers. None if there is none.

It is given the name of the version that answers, or an empty text before the first one.
"""
_DRAIN_POLL_S = 0.02
_KEEP_ALIVE_S = 75
"""Time that an idle connection stays open. It is longer than in proxies, so that the proxies close it first.

Otherwise a request would be lost if a proxy sends it while the server closes the connection.
"""

_SWITCH_S = 0.001
"""Longest time for which a thread that prepares requests keeps the interpreter from the event loop.

Python's default is 5 ms.
"""
_PING_S = 20.0
"""Interval of pings over WebSockets. If a client does not answer one within this time, its connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlaces:
    """Folders, files and servers that a server works with."""

    log: Path
    """Folder of the serving log."""
    budgets: Path
    """File of the token budgets of a single server."""
    reports: Path | None = None
    """Folder of the runs on this machine, for metrics of their last retrainings. None leaves these metrics out."""
    database: str | None = field(default=None, repr=False)
    """URL, with password, of the PostgreSQL database that the servers of one log share. None for a single server."""
    tracking_uri: str = ""
    """MLflow of the mirror."""


def run_server(
    settings: ServerSettings,
    places: ServerPlaces,
    next_version: NextVersion,
    authenticate: Authenticator,
    orchestrator: Orchestrator | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Then running turns get up to `drain_s` to end.

    A second signal ends the server at once. Raises the error of the log if it cannot be opened, and of the first
    version if it cannot be loaded.
    """
    sys.setswitchinterval(_SWITCH_S)
    connections = make_connections(settings)
    app, service = build_app(settings, places, next_version, authenticate, orchestrator, connections=connections)
    try:
        ChatServer(uvicorn_config(app, settings, connections), service).run()
    except SystemExit:  # uvicorn raises it if the log could not be opened
        if service.failure is None:
            raise
    finally:
        gc.freeze()  # or the interpreter's last collections take 1.5 s just for the modules of torch and MLflow
    if service.failure is not None:
        raise service.failure


def make_connections(settings: ServerSettings) -> Connections:
    """Create the book that counts connections and enforces their bounds."""
    most = settings.connections or default_connections()
    per_address = settings.connections_per_address or max(1, most // 2)
    return Connections(most=most, per_address=per_address, head_s=settings.head_s)


def build_app(
    settings: ServerSettings,
    places: ServerPlaces,
    next_version: NextVersion,
    authenticate: Authenticator,
    orchestrator: Orchestrator | None = None,
    *,
    connections: Connections,
) -> tuple[RequestCounts, Service]:
    """Build the application and the service of a server. The application's lifespan starts and stops the service."""
    metrics = Metrics()
    log = ErasableLog(places.log, retention_days=settings.retention_days, home=places.reports)
    service = Service(Versions(settings.engine), log, settings.service, observe=metrics.observe)
    log.on_erasure = service.forget
    mirror = _mirror(log, settings, places, metrics)
    metrics.watch(service, log, places.reports, mirror)
    database = None if places.database is None else SharedDatabase(places.database)
    budgets = TokenBudgets(places.budgets) if database is None else None
    limiter = Limiter(LocalUsage(budgets)) if database is None else _share(service, database)
    refused_work = RefusedWork(limiter, bytes_per_minute=settings.refused_bytes)
    if settings.rollouts is not None:
        service.rollouts = Rollouts(settings.engine, weights_bytes=settings.rollouts.weights_bytes)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pa.set_memory_pool(pa.system_memory_pool())  # pyarrow's own pool does not return a compaction's memory
        running = _running(service, next_version, settings.watch_s)
        try:
            watching = _watching(service, orchestrator, settings)
            rolling = (
                nullcontext() if service.rollouts is None else service.rollouts.running(settings.watch_s, service.fail)
            )
            async with log, database or nullcontext(), mirror or nullcontext(), rolling, running, watching:
                for erasure in await asyncio.to_thread(ServedLog(places.log).erasures):
                    service.turns.forget_later(erasure)  # it may be of a time when no server ran
                with frozen_survivors():
                    yield
        except BaseException as error:
            service.fail(error)
            raise
        service.preparation.close()
        service.constraints.close()
        if budgets is not None:
            budgets.close()

    parts = ServerState(service=service, limiter=limiter, metrics=metrics, refused_work=refused_work)
    app = create_app(parts, authenticate, lifespan=lifespan, orchestrator=orchestrator, body_bytes=settings.body_bytes)
    metrics.watch_edge(refused_work, connections, app)
    return RequestCounts(app, metrics), service


def _share(service: Service, database: SharedDatabase) -> Limiter:
    """Let a service share its conversations, and return a limiter that shares its usage."""
    database.on_failure = service.fail
    service.places.turns = SharedConversations(
        database, service.conversations, service.versions, service.preparation, service.log.user_hash
    )
    return Limiter(SharedUsage(database))


def _mirror(log: ErasableLog, settings: ServerSettings, places: ServerPlaces, metrics: Metrics) -> Mirror | None:
    if settings.mirror is None:
        return None
    return Mirror(
        log,
        settings.mirror,
        tracking_uri=places.tracking_uri,
        retention_days=settings.retention_days,
        observe=metrics.observe_feedback,
    )


@asynccontextmanager
async def _watching(
    service: Service, orchestrator: Orchestrator | None, settings: ServerSettings
) -> AsyncIterator[None]:
    """Publish changes of training runs while the block runs."""
    if orchestrator is None:
        yield
        return
    watcher = in_background(watch_jobs(orchestrator, service.hub, every_s=settings.jobs_s), service.fail)
    try:
        yield
    finally:
        await stop(watcher)


@asynccontextmanager
async def _running(service: Service, next_version: NextVersion, watch_s: float) -> AsyncIterator[None]:
    """Load the first version while probes are answered already, and watch for the next ones.

    If the first version cannot be loaded, the server ends with its error.
    """
    watcher = in_background(service.versions.watch(next_version, every_s=watch_s), service.fail)
    try:
        yield
    finally:
        await stop(watcher)
        await service.finish()
        await service.versions.close()


def uvicorn_config(app: Any, settings: ServerSettings, connections: Connections) -> uvicorn.Config:
    """Create uvicorn's settings: address, TLS and bounds."""
    http, sockets = bounded_protocols(connections)
    return uvicorn.Config(
        app,
        http=http,
        ws=sockets,
        loop="grpo.serving.access.uvicorn_protocols:HandshakeLoop",
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PING_S,
        host=settings.host,
        port=settings.port,
        ssl_certfile=None if settings.tls is None else settings.tls.certificate,
        ssl_keyfile=None if settings.tls is None else settings.tls.private_key,
        ws_max_size=settings.frame_bytes,
        timeout_graceful_shutdown=int(settings.drain_s),
        timeout_keep_alive=_KEEP_ALIVE_S,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
    )


class ChatServer(uvicorn.Server):
    """uvicorn's server, which drains after the first signal and lets WebSockets finish their replies."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        service.on_failure = self._end

    def _end(self) -> None:
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See `uvicorn.Server`."""
        self._service.drain()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`. It would close the port and WebSockets at once.

        So this waits until all replies have been sent. Until then probes are answered, and new requests get 503.
        """
        service, deadline = self._service, time.monotonic() + (self.config.timeout_graceful_shutdown or 0)
        while (service.streaming or service.requests) and not self.force_exit and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        self.config.timeout_graceful_shutdown = max(0, int(deadline - time.monotonic()))
        await super().shutdown(sockets)
