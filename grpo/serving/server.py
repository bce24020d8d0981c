"""A server of one model: its parts, started and stopped together.

start    log → first version → ready
SIGTERM  new requests are refused, running ones end, then engine → log
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
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

from grpo.serving.app import Parts, create_app
from grpo.serving.budgets import TokenBudgets
from grpo.serving.events import watch_jobs
from grpo.serving.guard import BODY_BYTES, Authenticator
from grpo.serving.limits import Limiter
from grpo.serving.log import ServingLog
from grpo.serving.metrics import Metrics
from grpo.serving.mirror import Mirror, MirrorSettings
from grpo.serving.operations import Orchestrator
from grpo.serving.request_counts import RequestCounts
from grpo.serving.service import Service
from grpo.serving.settings import ServiceSettings
from grpo.serving.versions import EngineSettings, ServedModel, Versions

NextVersion = Callable[[str], ServedModel | None]
"""Newer version than the one that answers, loaded; None without one. It is given that version, or an empty text."""
_DRAIN_POLL_S = 0.02
_KEEP_ALIVE_S = 75
"""Time that an idle connection stays open, longer than in proxies: a request that is sent while it closes is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Address, folders and sizes of a server."""

    log: Path
    """Folder of the serving log."""
    budgets: Path
    """File of the token budgets."""
    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    """TLS certificate; None serves HTTP."""
    private_key: Path | None = None
    retention_days: int | None = None
    """Days after which turns are erased; None keeps them."""
    body_bytes: int = BODY_BYTES
    """Bytes of a request's body at most."""
    frame_bytes: int = BODY_BYTES
    """Bytes of a WebSocket's message at most; a longer one closes the connection."""
    reports: Path | None = None
    """Folder of the runs on this machine, whose last retrainings are among the metrics; None leaves them out."""
    mirror: MirrorSettings | None = None
    """Mirror of the log in MLflow; None for none."""
    watch_s: float = 5.0
    """Interval at which a new version is looked for."""
    jobs_s: float = 2.0
    """Interval at which training runs are looked at, while a client listens to events."""
    drain_s: float = 60.0
    """Time that running turns have to end when the server stops."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)


def run_server(
    settings: ServerSettings,
    next_version: NextVersion,
    authenticate: Authenticator,
    orchestrator: Orchestrator | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; then running turns end, for `drain_s` at most. A second signal ends at once."""
    app, service = build_app(settings, next_version, authenticate, orchestrator)
    try:
        ChatServer(uvicorn_config(app, settings), service).run()
    finally:
        gc.freeze()  # the interpreter's last collections would take 1.5 s for the modules of torch and MLflow alone


def build_app(
    settings: ServerSettings,
    next_version: NextVersion,
    authenticate: Authenticator,
    orchestrator: Orchestrator | None = None,
) -> tuple[RequestCounts, Service]:
    """Build the application of a server, with its service, which its lifespan starts and stops."""
    metrics = Metrics()
    log = ServingLog(settings.log, retention_days=settings.retention_days)
    service = Service(Versions(settings.engine), log, settings.service, observe=metrics.observe)
    mirror = _mirror(log, settings, metrics)
    metrics.watch(service, log, settings.reports, mirror)
    budgets = TokenBudgets(settings.budgets)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pa.set_memory_pool(pa.system_memory_pool())  # pyarrow's own pool keeps what a compaction has taken
        running = _running(service, next_version, settings.watch_s)
        async with log, mirror or nullcontext(), running, _watching(service, orchestrator, settings):
            yield
        budgets.close()

    parts = Parts(service=service, limiter=Limiter(budgets), metrics=metrics)
    app = create_app(parts, authenticate, lifespan=lifespan, orchestrator=orchestrator, body_bytes=settings.body_bytes)
    return RequestCounts(app, metrics), service


def _mirror(log: ServingLog, settings: ServerSettings, metrics: Metrics) -> Mirror | None:
    if settings.mirror is None:
        return None
    return Mirror(log, settings.mirror, retention_days=settings.retention_days, observe=metrics.observe_feedback)


@asynccontextmanager
async def _watching(
    service: Service, orchestrator: Orchestrator | None, settings: ServerSettings
) -> AsyncIterator[None]:
    """Publish changes of training runs while the block runs."""
    if orchestrator is None:
        yield
        return
    watcher = asyncio.create_task(watch_jobs(orchestrator, service.hub, every_s=settings.jobs_s))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


@asynccontextmanager
async def _running(service: Service, next_version: NextVersion, watch_s: float) -> AsyncIterator[None]:
    """Load the first version, while probes are answered already, and watch for the next ones.

    Without a first version the process gets SIGTERM, and the error is raised at the end.
    """
    watcher = asyncio.create_task(service.versions.watch(next_version, every_s=watch_s))
    watcher.add_done_callback(lambda task: None if task.cancelled() else signal.raise_signal(signal.SIGTERM))
    try:
        yield
    finally:
        watcher.cancel()
        (ended,) = await asyncio.gather(watcher, return_exceptions=True)
        await service.finish()
        await service.versions.close()
        if isinstance(ended, Exception):
            raise ended


def uvicorn_config(app: Any, settings: ServerSettings) -> uvicorn.Config:
    """Create uvicorn's settings: address, TLS, bounds."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ssl_certfile=None if settings.certificate is None else str(settings.certificate),
        ssl_keyfile=None if settings.private_key is None else str(settings.private_key),
        ws_max_size=settings.frame_bytes,
        timeout_graceful_shutdown=int(settings.drain_s),
        timeout_keep_alive=_KEEP_ALIVE_S,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
    )


class ChatServer(uvicorn.Server):
    """uvicorn's server, which is not ready from the first signal on, and whose WebSockets end after their replies."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See `uvicorn.Server`."""
        self._service.drain()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`, which closes WebSockets at once, in the midst of a reply."""
        deadline = time.monotonic() + (self.config.timeout_graceful_shutdown or 0)
        while self._service.streaming and not self.force_exit and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        await super().shutdown(sockets)
