"""A server of one model: its parts, started and stopped together.

start    log → first version → ready
SIGTERM  new requests are refused, running ones end, then engine → log
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from grpo.serving.app import Parts, create_app
from grpo.serving.budgets import TokenBudgets
from grpo.serving.guard import Authenticator
from grpo.serving.limits import Limiter
from grpo.serving.log import ServingLog
from grpo.serving.metrics import Metrics
from grpo.serving.request_counts import RequestCounts
from grpo.serving.service import Service, ServiceSettings
from grpo.serving.versions import EngineSettings, ServedModel, Versions

NextVersion = Callable[[str], ServedModel | None]
"""Newer version than the one that answers, loaded; None without one. It is given that version, or an empty text."""


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
    reports: Path | None = None
    """Folder of the runs on this machine, whose last retrainings are among the metrics; None leaves them out."""
    watch_s: float = 5.0
    """Interval at which a new version is looked for."""
    drain_s: float = 60.0
    """Time that running turns have to end when the server stops."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)


def run_server(settings: ServerSettings, next_version: NextVersion, authenticate: Authenticator) -> None:
    """Serve until SIGTERM or SIGINT; then running turns end, for `drain_s` at most. A second signal ends at once."""
    app, service = build_app(settings, next_version, authenticate)
    _Server(_uvicorn_config(app, settings), service).run()


def build_app(
    settings: ServerSettings, next_version: NextVersion, authenticate: Authenticator
) -> tuple[RequestCounts, Service]:
    """Build the application of a server, with its service, which its lifespan starts and stops."""
    metrics = Metrics()
    log = ServingLog(settings.log, retention_days=settings.retention_days)
    service = Service(Versions(settings.engine), log, settings.service, observe=metrics.observe)
    metrics.watch(service, log, settings.reports)
    budgets = TokenBudgets(settings.budgets)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with log, _running(service, next_version, settings.watch_s):
            yield
        budgets.close()

    parts = Parts(service=service, limiter=Limiter(budgets), metrics=metrics)
    return RequestCounts(create_app(parts, authenticate, lifespan=lifespan), metrics), service


@asynccontextmanager
async def _running(service: Service, next_version: NextVersion, watch_s: float) -> AsyncIterator[None]:
    """Load the first version, while probes are answered already, and watch for the next ones."""
    watcher = asyncio.create_task(service.versions.watch(next_version, every_s=watch_s))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        await service.finish()
        await service.versions.close()


def _uvicorn_config(app: Any, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ssl_certfile=None if settings.certificate is None else str(settings.certificate),
        ssl_keyfile=None if settings.private_key is None else str(settings.private_key),
        timeout_graceful_shutdown=int(settings.drain_s),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
    )


class _Server(uvicorn.Server):
    """uvicorn's server, which is not ready from the first signal on."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See `uvicorn.Server`."""
        self._service.draining = True
        super().handle_exit(sig, frame)
