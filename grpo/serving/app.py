"""HTTP application of a served model: OpenAI's chat API, feedback, probes and metrics, behind the guard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import anyio
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from grpo.errors import GRPOError, StorageError
from grpo.serving.api_errors import APIError, error_body, install_error_handlers, overloaded
from grpo.serving.callers import Caller, Scope
from grpo.serving.chat_request import ChatRequest
from grpo.serving.chat_response import DONE, Choice, Usage, event
from grpo.serving.feedback_api import FeedbackRequest, Receipt
from grpo.serving.guard import Authenticator, Guard
from grpo.serving.limits import Limiter, Reservation
from grpo.serving.metrics import Metrics
from grpo.serving.service import Delta, Ended, Event, Exchange, Service

logger = logging.getLogger(__name__)
PUBLIC = frozenset({"/health", "/live", "/ready"})
"""Paths that need no key."""
SCOPES: dict[str, Scope] = {
    "/v1/chat": "chat",
    "/v1/models": "chat",
    "/v1/feedback": "feedback",
    "/metrics": "metrics",
    "/v1/metrics": "metrics",
}
"""Scope of a path and those below it; any other path needs `admin`."""
_KEEP_ALIVE_S = 15.0
"""Silence after which a stream gets a comment: proxies cut idle connections."""
T = TypeVar("T")


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
) -> Guard:
    """Create the application behind its guard; `lifespan` starts the log and loads the first version."""
    app = FastAPI(title="grpo serve", docs_url=None, redoc_url=None, lifespan=lifespan)
    install_error_handlers(app)
    _add_probes(app, parts.service)
    _add_chat(app, parts)
    _add_feedback(app, parts)
    _add_metrics(app, parts)
    return Guard(app, authenticate, public=PUBLIC, scopes=SCOPES)


def _caller(request: Request) -> Caller:
    """Caller that the guard has authenticated."""
    caller: Caller = request.state.caller
    return caller


Authenticated = Annotated[Caller, Depends(_caller)]


def _add_probes(app: FastAPI, service: Service) -> None:
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
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "grpo"} for name in names]
        return {"object": "list", "data": data}

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request, caller: Authenticated) -> Response:
        """Reply to a conversation, whole or as a stream of server-sent events."""
        exchange = service.begin(body, caller)
        reservation = await parts.limiter.reserve(caller, exchange.max_tokens)
        headers = {"x-conversation-id": exchange.completion.conversation_id, **parts.limiter.headers(caller)}
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            stream = _stream(exchange, reservation, with_usage=usage)
            headers |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
            return _EventStream(stream, media_type="text/event-stream", headers=headers)
        answered = await _unless_disconnected(request, _whole(exchange, reservation))
        return Response(status_code=499) if answered is None else JSONResponse(answered, headers=headers)


class _EventStream(StreamingResponse):
    """Stream that ends when its client goes away, also while it has nothing to send."""

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """See ASGI."""
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await self.listen_for_disconnect(receive)
                group.cancel_scope.cancel()

            group.start_soon(watch)
            await self.stream_response(send)
            group.cancel_scope.cancel()


async def _whole(exchange: Exchange, reservation: Reservation) -> dict[str, Any]:
    """Body of a response that is not streamed."""
    choices: dict[int, Choice] = {}
    usages: list[Usage] = []
    try:
        async with aclosing(exchange.events()) as events:
            async for event_ in events:
                if isinstance(event_, Ended):
                    choices[event_.choice.index] = event_.choice
                    usages.append(event_.usage)
    except StorageError as error:
        raise _unlogged(error) from error
    finally:
        reservation.settle(sum(usage.prompt + usage.completion for usage in usages))
    ordered = [choices[index] for index in sorted(choices)]
    return exchange.completion.body(ordered, Usage.total(usages))


async def _stream(exchange: Exchange, reservation: Reservation, *, with_usage: bool) -> AsyncIterator[bytes]:
    """Server-sent events of a request; an error is the last one."""
    completion, usages = exchange.completion, list[Usage]()
    begun: set[int] = set()
    try:
        async with aclosing(exchange.events()) as events:
            async for event_ in _with_silence(events):
                if event_ is None:
                    yield b": keep-alive\n\n"
                    continue
                index = event_.index if isinstance(event_, Delta) else event_.choice.index
                if index not in begun:
                    begun.add(index)
                    yield event(completion.chunk(index, {"role": "assistant", "content": ""}))
                if isinstance(event_, Delta):
                    yield event(completion.chunk(index, {"content": event_.text}, logprobs=event_.logprobs))
                    continue
                usages.append(event_.usage)
                for chunk in completion.last_chunks(event_.choice, event_.sent, event_.rest):
                    yield event(chunk)
        if with_usage:
            yield event(completion.usage_chunk(Usage.total(usages)))
        yield DONE
    except StorageError as error:
        yield event(error_body(_unlogged(error)))
    except APIError as error:
        yield event(error_body(error))
    except GRPOError as error:
        logger.exception("a turn failed")
        yield event(error_body(APIError(500, str(error), type="server_error")))
    finally:
        reservation.settle(sum(usage.prompt + usage.completion for usage in usages))


async def _with_silence(events: AsyncGenerator[Event]) -> AsyncIterator[Event | None]:
    """Events, and None for each interval without one."""
    iterator = aiter(events)
    following: asyncio.Task[Event] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(iterator))
            done, _ = await asyncio.wait({following}, timeout=_KEEP_ALIVE_S)
            if not done:
                yield None
                continue
            task, following = following, None
            try:
                yield task.result()
            except StopAsyncIteration:
                return
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _unless_disconnected(request: Request, answer: Awaitable[T]) -> T | None:
    """Result of an answer; None where the client goes away first, which cancels it."""
    answering = asyncio.ensure_future(answer)

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.create_task(disconnected())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            return None
        return answering.result()
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


def _unlogged(error: StorageError) -> APIError:
    logger.error("a turn is not in the log, so it is not answered: %s", error)
    return overloaded("the conversation cannot be logged now; try again", retry_after_s=10.0)


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
