"""Responses with replies: whole, as server-sent events, or as the same objects over a WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from grpo.errors import StorageError
from grpo.policy.grammars import GrammarError
from grpo.serving.access.callers import Caller
from grpo.serving.access.limits import Limiter
from grpo.serving.protocol.api_errors import APIError, error_body, overloaded
from grpo.serving.protocol.chat_response import DONE, Choice, Usage, event
from grpo.serving.requests.admission import Admission
from grpo.serving.requests.chat_handler import ChatHandler
from grpo.serving.requests.constraints import refused_schema
from grpo.serving.requests.reply_events import Delta, Ended

if TYPE_CHECKING:
    from grpo.serving.requests.service import Service

logger = logging.getLogger(__name__)
_ALIVE = b": keep-alive\n\n"
Chunk = Mapping[str, Any] | str | APIError
"""JSON object of a stream. The last one is `[DONE]`, or the error that has ended the stream."""
T = TypeVar("T")
AdmittedT = TypeVar("AdmittedT", bound="Admitted")


class Admitted(Protocol):
    """Request that the service has admitted."""

    max_tokens: int
    admission: Admission


async def admit(
    begin: Callable[[], Awaitable[AdmittedT]], service: Service, limiter: Limiter, caller: Caller
) -> AdmittedT:
    """Admit a request and reserve its tokens. Raises `APIError`.

    If it raises an error, the request is not in progress any more and nothing stays reserved for it.
    If the caller has used up its limits, or if the server is full, the request is refused before `begin` reads it.
    While it is read it counts among the requests of its caller, so that work before the admission is bounded as well.
    """
    reservation = await limiter.enter(caller)
    try:
        service.check_room()
        try:
            handler = await begin()
        except Exception as error:  # e.g. of a renderer of the user's own
            raise answerable(error) from error
        try:
            await reservation.take(handler.max_tokens)
        except BaseException:
            handler.admission.release()
            raise
    except BaseException:
        await reservation.cancel()
        raise
    handler.admission.reservation = reservation
    return handler


class EventStream(StreamingResponse):
    """Stream of a request. It ends when its client goes away, also while there is nothing to send."""

    def __init__(self, admission: Admission, stream: AsyncGenerator[bytes], headers: Mapping[str, str]) -> None:
        self._admission = admission
        unbuffered = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(stream, media_type="text/event-stream", headers={**headers, **unbuffered})

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    await self.listen_for_disconnect(receive)
                    group.cancel_scope.cancel()

                group.start_soon(watch)
                await self.stream_response(send)
                group.cancel_scope.cancel()
        finally:
            self._admission.release()


class WholeReply(JSONResponse):
    """Reply as one object. Its request ends when the object was sent."""

    def __init__(self, body: Mapping[str, Any], admission: Admission, headers: Mapping[str, str]) -> None:
        self._admission = admission
        super().__init__(body, headers=headers)

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(connection, receive, send)
        finally:
            self._admission.release()


async def whole(handler: ChatHandler) -> dict[str, Any]:
    """Body of a response that is not streamed."""
    choices: dict[int, Choice] = {}
    usages: list[Usage] = []
    try:
        async with aclosing(handler.events()) as events:
            async for event_ in events:
                if isinstance(event_, Ended):
                    choices[event_.choice.index] = event_.choice
                    usages.append(event_.usage)
    except Exception as error:
        raise answerable(error) from error
    await handler.admission.settle()
    ordered = [choices[index] for index in sorted(choices)]
    return handler.completion.body(ordered, Usage.total(usages))


async def server_sent_events(handler: ChatHandler, *, with_usage: bool) -> AsyncGenerator[bytes]:
    """Server-sent events of a reply. A comment is sent in an interval without events, to keep the connection alive."""
    async with aclosing(chunks(handler, with_usage=with_usage)) as stream:
        async for ready in stream:
            yield (
                b"".join(event(error_body(chunk) if isinstance(chunk, APIError) else chunk) for chunk in ready)
                or _ALIVE
            )


async def chunks(handler: ChatHandler, *, with_usage: bool) -> AsyncGenerator[Sequence[Chunk]]:
    """Chunks of a reply, then `[DONE]`. If the reply fails, the error is the last chunk.

    Chunks that are ready together are yielded together, because each sending takes time. An empty list stands for an
    interval without events.
    """
    completion, usages = handler.completion, list[Usage]()
    begun: set[int] = set()
    ready: list[Chunk] = []
    try:
        async with aclosing(handler.events()) as events:
            async for event_ in events:
                if event_ is not None:
                    index = event_.index if isinstance(event_, Delta) else event_.choice.index
                    if index not in begun:
                        begun.add(index)
                        ready.append(completion.chunk(index, {"role": "assistant", "content": ""}))
                    if isinstance(event_, Delta):
                        ready.append(completion.chunk(index, {"content": event_.text}, logprobs=event_.logprobs))
                    else:
                        usages.append(event_.usage)
                        ready += completion.last_chunks(event_.choice, event_.sent, event_.rest)
                if len(usages) < handler.choices:
                    yield ready
                    ready = []
        await handler.admission.settle()  # before the client knows the end, and may send its next request
        if with_usage:
            ready.append(completion.usage_chunk(Usage.total(usages)))
        yield [*ready, DONE]
    except Exception as error:
        yield [*ready, answerable(error)]


async def unless_disconnected(request: Request, answer: Awaitable[T]) -> T | None:
    """Result of an answer. If the client goes away first, the answer is cancelled and the result is None."""
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


def answerable(error: Exception) -> APIError:
    """Error for the client. An `APIError` stays as it is.

    A schema that replies cannot be constrained by is 400, and a turn that the serving log refused is 503. Everything
    else is 500. The server's own log has the cause of a 503 or 500.
    """
    if isinstance(error, APIError):
        return error
    if isinstance(error, GrammarError):
        return refused_schema(str(error), "response_format")
    if isinstance(error, StorageError):
        logger.error("a turn is not in the log, so it is not answered: %s", error)
        return overloaded("the conversation cannot be logged now. Try again", retry_after_s=10.0)
    logger.error("a turn failed", exc_info=error)
    return APIError(500, "the server failed on this request. Its log has the cause", type="server_error")
