"""Chat over a WebSocket: a request is one text frame, its reply the objects of an event stream, one a frame.

    client   {"model": …, "messages": […]}                       {"model": …, "conversation_id": …, "messages": […]}
    server      chunk  chunk  …  [DONE]                              chunk  …  [DONE]

A reply ends with `[DONE]` or with `{"error": …, "status": …}`; the connection stays open. Requests that come meanwhile
wait, a few. A client that goes away aborts its turn.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import anyio
from fastapi import WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect

from grpo.errors import GRPOError
from grpo.serving.api_errors import APIError, error_body, invalid_request, validation_error
from grpo.serving.callers import Caller
from grpo.serving.chat_request import ChatRequest
from grpo.serving.chat_response import json_text
from grpo.serving.guard import encodable
from grpo.serving.limits import Limiter
from grpo.serving.service import Service
from grpo.serving.streams import admit, chunks

logger = logging.getLogger(__name__)
WAITING_REQUESTS = 8
"""Requests that may wait for the reply before them."""
TOO_MANY, POLICY_VIOLATION = 1013, 1008
"""Codes of a close: try again later, and not authorized."""


async def serve_chat_socket(socket: WebSocket, service: Service, limiter: Limiter) -> None:
    """Answer the requests of one connection in their order, until the client closes it."""
    authorize: Callable[[], Caller] = socket.state.authorize
    frames, requests = anyio.create_memory_object_stream[str | None](WAITING_REQUESTS)
    refusal: tuple[int, str] | None = None
    await socket.accept()
    async with frames, requests, anyio.create_task_group() as group:

        async def listen() -> None:
            nonlocal refusal
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                try:
                    frames.send_nowait(message.get("text"))
                except anyio.WouldBlock:
                    refusal = (TOO_MANY, f"more than {WAITING_REQUESTS} requests wait")
                    break
            group.cancel_scope.cancel()

        group.start_soon(listen)
        try:
            async for frame in requests:
                try:
                    caller = authorize()
                except APIError as error:
                    await socket.send_text(error_text(error))
                    refusal = (POLICY_VIOLATION, "not authorized")
                    break
                async with aclosing(_reply(frame, caller, service, limiter)) as texts:
                    async for text in texts:
                        await socket.send_text(text)
        except WebSocketDisconnect:
            pass
        group.cancel_scope.cancel()
    if refusal is not None:
        await socket.close(*refusal)


async def _reply(frame: str | None, caller: Caller, service: Service, limiter: Limiter) -> AsyncGenerator[str]:
    """Frames of the reply to one request."""
    try:
        request = parse_request(frame)
        exchange = await admit(lambda: service.begin(request, caller), limiter, caller)
    except APIError as error:
        yield error_text(error)
        return
    except GRPOError as error:
        logger.error("a request failed: %s", error)
        yield error_text(APIError(500, "the server failed on this request; its log has the cause", type="server_error"))
        return
    usage = request.stream_options is not None and request.stream_options.include_usage
    service.streaming += 1
    try:
        async with aclosing(chunks(exchange, with_usage=usage)) as stream:
            async for ready in stream:
                for chunk in ready:
                    yield error_text(chunk) if isinstance(chunk, APIError) else json_text(chunk)
    finally:
        service.streaming -= 1
        exchange.hold.leave()


def parse_request(frame: str | None) -> ChatRequest:
    """Read the request of a frame, None for a binary one; raises `APIError` as the HTTP route does."""
    body = parse_object(frame)
    try:
        return ChatRequest.model_validate({"stream": True, **body})
    except ValidationError as error:
        raise validation_error([{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]) from error


def parse_object(frame: str | None) -> dict[str, Any]:
    """Read the JSON object of a text frame. Raises `APIError`."""
    if frame is None:
        raise invalid_request("the frame is binary; send JSON as text", code="invalid_json")
    if not encodable(frame):
        raise invalid_request("the frame holds half of a surrogate pair, which UTF-8 cannot hold", code="invalid_text")
    try:
        body = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise invalid_request("the frame is not valid JSON", code="invalid_json") from error
    if not isinstance(body, dict):
        raise invalid_request("the frame is not a JSON object", code="invalid_type")
    return body


def error_text(error: APIError) -> str:
    """Frame of an error, with the status and the wait that HTTP has in its head; ASCII, as it may quote anything."""
    wait = {} if error.retry_after_s is None else {"retry_after_ms": max(1, math.ceil(error.retry_after_s * 1000))}
    return json.dumps({**error_body(error), "status": error.status, **wait})
