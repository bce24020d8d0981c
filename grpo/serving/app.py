"""HTTP application of a served model: OpenAI's chat API, feedback, probes and metrics, behind the guard."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from grpo.errors import StorageError
from grpo.serving.api_errors import install_error_handlers, overloaded
from grpo.serving.callers import Caller, Scope
from grpo.serving.chat_request import ChatRequest
from grpo.serving.chat_socket import serve_chat_socket
from grpo.serving.completion_request import CompletionRequest
from grpo.serving.completions import CompletionExchange
from grpo.serving.events import serve_event_socket
from grpo.serving.feedback_api import FeedbackRequest, Receipt
from grpo.serving.guard import BODY_BYTES, Authenticator, Guard
from grpo.serving.limits import Limiter
from grpo.serving.metrics import Metrics
from grpo.serving.operations import Orchestrator, add_operations
from grpo.serving.page import page_response
from grpo.serving.service import Service
from grpo.serving.streams import EventStream, admit, unless_disconnected, whole

PUBLIC = frozenset({"/", "/health", "/live", "/ready"})
"""Paths that need no key: probes, and the chat page, which asks for one."""
SCOPES: dict[str, Scope] = {
    "/v1/chat": "chat",
    "/v1/completions": "chat",
    "/v1/models": "chat",
    "/v1/feedback": "feedback",
    "/metrics": "metrics",
    "/v1/metrics": "metrics",
}
"""Scope of a path and those below it; any other path needs `admin`."""

GENERATING = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Paths whose requests take room of the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a server that its routes use."""

    service: Service
    limiter: Limiter
    metrics: Metrics


def create_app(
    parts: Parts,
    authenticate: Authenticator,
    *,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    orchestrator: Orchestrator | None = None,
    body_bytes: int = BODY_BYTES,
) -> Guard:
    """Create the application behind its guard; `lifespan` starts the log and loads the first version."""
    app = FastAPI(title="grpo serve", docs_url=None, redoc_url=None, lifespan=lifespan)
    install_error_handlers(app)
    _add_probes(app, parts.service)
    _add_chat(app, parts)
    _add_completions(app, parts)
    _add_sockets(app, parts)
    _add_feedback(app, parts)
    add_operations(app, parts.service, orchestrator)
    _add_metrics(app, parts)

    def check_room(path: str) -> None:
        if path in GENERATING:
            parts.service.check_room()

    return Guard(app, authenticate, public=PUBLIC, scopes=SCOPES, body_bytes=body_bytes, check_room=check_room)


async def _caller(request: Request) -> Caller:
    """Caller that the guard has authenticated; async, since FastAPI runs other functions in threads."""
    caller: Caller = request.state.caller
    return caller


Authenticated = Annotated[Caller, Depends(_caller)]


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/")
    async def page() -> Response:
        """Chat page."""
        return page_response()

    @app.get("/live")
    @app.get("/health")
    async def live() -> dict[str, str]:
        """Liveness: the event loop answers."""
        return {"status": "healthy"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """Readiness: a version is loaded, and the server is not stopping; start-up probes ask here too."""
        current = service.versions.current
        status = "draining" if service.draining else "loading" if current is None else "ready"
        body = {"status": status, "model": None if current is None else current.served.version}
        return JSONResponse(body, status_code=200 if service.ready else 503)


def _add_chat(app: FastAPI, parts: Parts) -> None:
    service = parts.service

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The model, and its loaded versions."""
        loaded = service.versions.loaded
        names = [*({loaded[-1].served.model: None} if loaded else ()), *(version.served.version for version in loaded)]
        return {"object": "list", "data": [_model(name) for name in names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The model, or a loaded version of it."""
        service.version_of(name)
        return _model(name)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request, caller: Authenticated) -> Response:
        """Reply to a conversation, whole or as a stream of server-sent events."""
        exchange = await admit(lambda: service.begin(body, caller), parts.limiter, caller)
        headers = {"x-conversation-id": exchange.completion.conversation_id, **parts.limiter.headers(caller)}
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            return EventStream(exchange, headers, with_usage=usage)
        try:
            answered = await unless_disconnected(request, whole(exchange))
        finally:
            exchange.hold.leave()
        return Response(status_code=499) if answered is None else JSONResponse(answered, headers=headers)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "grpo"}


def _add_completions(app: FastAPI, parts: Parts) -> None:
    @app.post("/v1/completions")
    async def complete(body: CompletionRequest, request: Request, caller: Authenticated) -> Response:
        """Continue a prompt of text or token ids."""
        exchange = await admit(lambda: CompletionExchange(parts.service, body, caller), parts.limiter, caller)
        try:
            answered = await unless_disconnected(request, exchange.body())
        finally:
            exchange.hold.leave()
        headers = parts.limiter.headers(caller)
        return Response(status_code=499) if answered is None else JSONResponse(answered, headers=headers)


def _add_sockets(app: FastAPI, parts: Parts) -> None:
    @app.websocket("/v1/chat/stream")
    async def chat(socket: WebSocket) -> None:
        """Replies to conversations, over one connection."""
        await serve_chat_socket(socket, parts.service, parts.limiter)

    @app.websocket("/v1/events")
    async def events(socket: WebSocket) -> None:
        """Events of the server and of training runs."""
        await serve_event_socket(socket, parts.service)


def _add_feedback(app: FastAPI, parts: Parts) -> None:
    service = parts.service

    @app.post("/v1/feedback")
    async def feedback(body: FeedbackRequest, caller: Authenticated) -> Receipt:
        """Log feedback on a turn or a conversation; it may come late, repeatedly and in any order."""
        record = body.to_record(caller, now=service.now())
        try:
            await service.log.append(record)
        except StorageError as error:
            raise overloaded("feedback cannot be logged now; try again", retry_after_s=10.0) from error
        parts.metrics.observe_feedback(record)
        return Receipt(id=record.id)


def _add_metrics(app: FastAPI, parts: Parts) -> None:
    @app.get("/metrics")
    async def prometheus() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(parts.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/metrics")
    async def as_json() -> dict[str, float]:
        """The same metrics as one JSON object."""
        return parts.metrics.values()
