"""HTTP application of a served model: OpenAI's chat API, feedback, the log, probes and metrics, behind the guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.routing import Match

from grpo.config.serving import BODY_BYTES
from grpo.errors import StorageError
from grpo.policy.servers.protocol import FILES, PREFIX, TURNS, WEIGHTS, TurnRequest, WeightsRequest
from grpo.serving.access.callers import Caller, Scope
from grpo.serving.access.guard import Authenticator, Guard
from grpo.serving.access.limits import Limiter
from grpo.serving.access.refused_work import RefusedWork
from grpo.serving.engine.rollouts import Rollouts
from grpo.serving.metrics import Metrics
from grpo.serving.protocol.api_errors import (
    APIError,
    install_error_handlers,
    other_protocol,
    overloaded,
    unknown_address,
)
from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.protocol.completion_request import CompletionRequest
from grpo.serving.protocol.responses_request import ResponsesRequest, renamed
from grpo.serving.requests.admission import Admission
from grpo.serving.requests.chat_handler import ChatHandler
from grpo.serving.requests.feedback import FeedbackRequest, Receipt, log_feedback
from grpo.serving.requests.logged_conversation import LogReceipt, LogRequest, log_conversation
from grpo.serving.requests.request_body import RequestT, read_request, read_small_request
from grpo.serving.requests.service import Service
from grpo.serving.routes.chat_socket import serve_chat_socket
from grpo.serving.routes.completions import CompletionHandler, begin_completion
from grpo.serving.routes.events import serve_event_socket
from grpo.serving.routes.openapi import describe_bodies
from grpo.serving.routes.operations import Orchestrator, ScaleRequest, TrainRequest, add_operations
from grpo.serving.routes.page import page_response
from grpo.serving.routes.responses import ResponseWriter
from grpo.serving.routes.rollout_turns import RolloutTurn, begin_turn
from grpo.serving.routes.rollout_weights import add_weight_routes
from grpo.serving.routes.streams import (
    AdmittedT,
    EventStream,
    WholeReply,
    admit,
    server_sent_events,
    unless_disconnected,
    whole,
)

PUBLIC = frozenset({"/", "/health", "/live", "/ready"})
"""Paths that need no key: the probes, and the chat page, which asks the user for a key."""
SCOPES: dict[str, Scope] = {
    "/v1/chat": "chat",
    "/v1/completions": "chat",
    "/v1/responses": "chat",
    "/v1/models": "chat",
    "/v1/feedback": "feedback",
    "/v1/log": "log",
    "/metrics": "metrics",
    "/v1/metrics": "metrics",
    PREFIX: "rollout",
}
"""Scope of a path and of all paths below it. Any other path needs `admin`."""

GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", TURNS})
"""Paths with requests that the engine has to generate for."""

BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/feedback": FeedbackRequest,
    "/v1/log": LogRequest,
    "/v1/train": TrainRequest,
    "/v1/scale": ScaleRequest,
}
"""Body of each path that takes a body."""
_ROLLOUT_BODIES: dict[str, type[BaseModel]] = {WEIGHTS: WeightsRequest, TURNS: TurnRequest}
"""Bodies of the paths of a server that takes rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """Shared state of the routes."""

    service: Service
    limiter: Limiter
    metrics: Metrics
    refused_work: RefusedWork


def create_app(
    parts: ServerState,
    authenticate: Authenticator,
    *,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    orchestrator: Orchestrator | None = None,
    body_bytes: int = BODY_BYTES,
) -> Guard:
    """Create the application behind its guard. `lifespan` starts the log and loads the first version."""
    # no redirects of slashes, because such a redirect would go to any host that the client has named; the guard drops
    # the last slash instead, except that of a parameter, e.g. of a user's name
    app = FastAPI(title="grpo serve", docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False)
    install_error_handlers(app)
    _add_probes(app, parts.service)
    _add_chat(app, parts)
    _add_responses(app, parts)
    _add_completions(app, parts)
    _add_sockets(app, parts)
    _add_feedback(app, parts)
    add_operations(app, parts.service, orchestrator)
    _add_metrics(app, parts)
    rollouts = parts.service.rollouts
    if rollouts is not None:
        _add_rollouts(app, parts, rollouts)
    _answer_head(app)
    describe_bodies(app, BODIES if rollouts is None else {**BODIES, **_ROLLOUT_BODIES})

    async def check_room(path: str, caller: Caller) -> None:
        if path in GENERATING:
            await parts.limiter.check(caller)
            parts.service.check_room()

    def check_known(path: str, protocol: str) -> None:
        known = {
            kind
            for kind in ("http", "websocket")
            for route in app.routes
            if route.matches({"type": kind, "path": path, "method": "GET", "root_path": ""})[0] is not Match.NONE
        }
        if not known:
            raise unknown_address(path)
        if protocol not in known:
            raise other_protocol(path, is_socket=protocol == "websocket")

    return Guard(
        app,
        authenticate,
        public=PUBLIC,
        scopes=SCOPES,
        large=GENERATING,
        streamed=FILES,
        exact={path for route in app.routes if "{" not in (path := getattr(route, "path", "{"))},
        body_bytes=body_bytes,
        check_room=check_room,
        check_known=check_known,
        refused_work=parts.refused_work,
        preparation=parts.service.preparation,
    )


def _answer_head(app: FastAPI) -> None:
    """Answer HEAD where GET is answered. FastAPI does not add it, but the HTTP server leaves out the body."""
    for route in list(app.routes):
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)


async def _caller(request: Request) -> Caller:
    """Caller that the guard has authenticated. It is async, because FastAPI runs other functions in threads."""
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
        """Readiness or start-up: a version is loaded, its engine answers, and the server is not stopping."""
        current = service.versions.current
        body: dict[str, Any] = {"status": service.status, "model": None if current is None else current.served.version}
        body["servers"] = 0 if service.turns.away else service.turns.servers
        if service.versions.moved is not None:
            body["alias"] = service.versions.moved
        return JSONResponse(body, status_code=200 if service.ready else 503)


def _add_chat(app: FastAPI, parts: ServerState) -> None:
    service = parts.service

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The model, and its loaded versions."""
        loaded = service.versions.loaded
        names = [loaded[-1].served.model] if loaded else []
        names += [version.served.version for version in loaded]
        # the version of a model folder has the name of its model
        return {"object": "list", "data": [_model(name) for name in dict.fromkeys(names)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The model, or a loaded version of it."""
        service.version_of(name)
        return _model(name)

    @app.post("/v1/chat/completions")
    async def chat(request: Request, caller: Authenticated) -> Response:
        """Reply to a conversation, whole or as a stream of server-sent events."""
        handler = await _admit(ChatRequest, service.begin, request, caller, parts)
        if handler is None:
            return Response(status_code=499)
        ids = {"x-conversation-id": handler.completion.conversation_id}
        if handler.request.stream:
            stream = server_sent_events(handler, with_usage=handler.request.with_usage)
            return EventStream(handler.admission, stream, {**ids, **handler.admission.headers})
        return await _answer(request, handler.admission, whole(handler), ids)


def _add_responses(app: FastAPI, parts: ServerState) -> None:
    async def begin(body: ResponsesRequest, caller: Caller) -> _Asked:
        try:
            return _Asked(body, await parts.service.begin(body.to_chat(), caller))
        except APIError as error:
            raise renamed(error) from error

    @app.post("/v1/responses")
    async def respond(request: Request, caller: Authenticated) -> Response:
        """Reply to a conversation in the shape of OpenAI's Responses API, whole or as server-sent events."""
        asked = await _admit(ResponsesRequest, begin, request, caller, parts)
        if asked is None:
            return Response(status_code=499)
        handler = asked.handler
        writer = ResponseWriter(asked.request, handler)
        ids = {"x-conversation-id": handler.completion.conversation_id}
        if handler.request.stream:
            return EventStream(handler.admission, writer.events(), {**ids, **handler.admission.headers})
        return await _answer(request, handler.admission, writer.whole(), ids)


class _Asked:
    """Admitted request of the Responses API."""

    def __init__(self, request: ResponsesRequest, handler: ChatHandler) -> None:
        self.request, self.handler = request, handler
        self.max_tokens, self.admission = handler.max_tokens, handler.admission


async def _answer(
    request: Request, admission: Admission, body: Awaitable[dict[str, Any]], headers: Mapping[str, str]
) -> Response:
    """Response with a body that is not streamed. If the client goes away, the body is cancelled."""
    try:
        answered = await unless_disconnected(request, body)
    except BaseException:
        admission.release()
        raise
    if answered is None:
        admission.release()
        return Response(status_code=499)
    return WholeReply(answered, admission, {**headers, **admission.headers})


async def _admit(
    kind: type[RequestT],
    begin: Callable[[RequestT, Caller], Awaitable[AdmittedT]],
    request: Request,
    caller: Caller,
    parts: ServerState,
    *,
    most_ids: int | None = None,
) -> AdmittedT | None:
    """Parse and admit a request, without FastAPI, which would block the event loop. None if the client goes away.

    `most_ids` bounds the token ids of the request, by default to the largest context of the versions that answer chats.
    """
    content, service = await request.body(), parts.service
    most = service.max_context if most_ids is None else most_ids

    async def read_and_begin() -> AdmittedT:
        body = await read_request(kind, content, preparation=service.preparation, key=caller.key_hash, most_ids=most)
        return await begin(body, caller)

    admitted = await unless_disconnected(request, admit(read_and_begin, service, parts.limiter, caller))
    if admitted is None:
        request.state.charge(len(content))
    return admitted


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "grpo"}


def _add_completions(app: FastAPI, parts: ServerState) -> None:
    @app.post("/v1/completions")
    async def complete(request: Request, caller: Authenticated) -> Response:
        """Continue a prompt of text or token ids."""
        begin = partial(begin_completion, parts.service)
        handler = await _admit(CompletionRequest, begin, request, caller, parts)
        return await _whole_document(request, handler)


async def _whole_document(request: Request, handler: CompletionHandler | RolloutTurn | None) -> Response:
    """Reply of a handler as one JSON document. If the client went away, before or while it was generated, 499."""
    if handler is None:
        return Response(status_code=499)
    try:
        answered = await unless_disconnected(request, handler.body())
    finally:
        handler.admission.release()
    headers = handler.admission.headers
    return Response(status_code=499) if answered is None else JSONResponse(answered, headers=headers)


def _add_sockets(app: FastAPI, parts: ServerState) -> None:
    @app.websocket("/v1/chat/stream")
    async def chat(socket: WebSocket) -> None:
        """Replies to conversations, over one connection."""
        await serve_chat_socket(socket, parts.service, parts.limiter, parts.refused_work.check)

    @app.websocket("/v1/events")
    async def events(socket: WebSocket) -> None:
        """Events of the server and of training runs."""
        await serve_event_socket(socket, parts.service, parts.refused_work.check)


@contextmanager
def _asked_again(what: str) -> Iterator[None]:
    """Answer 503 with a time to wait if the log cannot be written."""
    try:
        yield
    except StorageError as error:
        raise overloaded(f"{what} cannot be logged now. Try again", retry_after_s=10.0) from error


def _add_feedback(app: FastAPI, parts: ServerState) -> None:
    service = parts.service

    @app.post("/v1/feedback")
    async def feedback(request: Request, caller: Authenticated, response: Response) -> Receipt:
        """Log feedback on a turn or a conversation. It may arrive late, repeatedly and in any order."""
        body = await read_small_request(FeedbackRequest, request, preparation=service.preparation)
        with _asked_again("feedback"):
            record = await log_feedback(body, caller, service.log, parts.limiter, now=service.now())
        parts.metrics.observe_feedback(record)
        response.headers.update(await parts.limiter.headers(caller))
        return Receipt(id=record.id)

    @app.post("/v1/log")
    async def log(request: Request, caller: Authenticated, response: Response) -> LogReceipt:
        """Log a conversation that another server had, so that retraining reads it like a conversation of this one."""
        body = await read_small_request(LogRequest, request, preparation=service.preparation)
        with _asked_again("the conversation"):
            receipt = await log_conversation(body, caller, service.log, parts.limiter, now=service.now())
        response.headers.update(await parts.limiter.headers(caller))
        return receipt


def _add_rollouts(app: FastAPI, parts: ServerState, rollouts: Rollouts) -> None:
    service = parts.service

    add_weight_routes(app, rollouts, service.preparation)

    @app.post(TURNS)
    async def turn(request: Request, caller: Authenticated) -> Response:
        """Generate a turn with a loaded version. It is not logged."""
        begin = partial(begin_turn, service, rollouts)
        handler = await _admit(TurnRequest, begin, request, caller, parts, most_ids=rollouts.max_context)
        return await _whole_document(request, handler)


def _add_metrics(app: FastAPI, parts: ServerState) -> None:
    @app.get("/metrics")
    async def prometheus() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(parts.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/metrics")
    async def as_json() -> dict[str, float]:
        """The same metrics as one JSON object."""
        return parts.metrics.values()
