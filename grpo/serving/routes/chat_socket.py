"""Chat over a WebSocket: a request is one text frame, and its reply is an event stream with one object per frame.

    client   {"model": …, "messages": […]}                       {"model": …, "conversation_id": …, "messages": […]}
    server      chunk  chunk  …  [DONE]                              chunk  …  [DONE]

A reply ends with `[DONE]` or with `{"error": …, "status": …}`, and the connection stays open. If requests arrive before
the reply has ended, a few of them wait. If the client goes away, its turn is aborted. If no request arrives for ten
minutes, the connection is closed.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from grpo.errors import GRPOError
from grpo.serving.access.callers import Caller
from grpo.serving.access.limits import Limiter
from grpo.serving.access.preparation import AT_ONCE, take_cpu_s
from grpo.serving.protocol.api_errors import APIError, error_body, invalid_request
from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.protocol.chat_response import json_text
from grpo.serving.protocol.json_bounds import encodable
from grpo.serving.requests.chat_handler import ChatHandler
from grpo.serving.requests.request_body import parse_object, read_request
from grpo.serving.requests.service import Service
from grpo.serving.routes.streams import admit, chunks

logger = logging.getLogger(__name__)
WAITING_REQUESTS = 8
"""Most requests that may wait for the reply before them."""
WAITING_CHARACTERS = 16 * 2**20
"""Most characters in all waiting frames of one key. A single frame may have more if no other frame waits."""
_CLIENT_GONE = 408
GOING_AWAY, TOO_MANY, POLICY_VIOLATION = 1001, 1013, 1008
"""Close codes: idle for too long, try again later, and not authorized."""


async def serve_chat_socket(
    socket: WebSocket, service: Service, limiter: Limiter, check_refused: Callable[[Caller], None]
) -> None:
    """Answer the requests of one connection in order, until the client closes it.

    If too many requests of a caller were refused, `check_refused` raises `APIError`, and the connection is closed.
    """
    idle_s = service.settings.socket_idle_s
    authorize: Callable[[], Caller] = socket.state.authorize
    waiting = _WaitingFrames(service.waiting_frames, socket.state.caller.key_hash, socket.state.charge)
    frames, requests = anyio.create_memory_object_stream[str | None](WAITING_REQUESTS)
    refusal: tuple[int, str] | None = None
    await socket.accept()
    async with frames, requests, anyio.create_task_group() as group:

        async def listen() -> None:
            nonlocal refusal
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                text = message.get("text")
                if not waiting.add(len(text or message.get("bytes") or "")):
                    refusal = (TOO_MANY, f"more than {WAITING_CHARACTERS} characters of this key's requests wait")
                    break
                try:
                    frames.send_nowait(text)
                except anyio.BrokenResourceError:
                    continue  # the client is gone, so that its frame is only charged
                except anyio.WouldBlock:
                    refusal = (TOO_MANY, f"more than {WAITING_REQUESTS} requests wait")
                    break
            group.cancel_scope.cancel()

        group.start_soon(listen)
        try:
            while refusal is None:
                with anyio.move_on_after(idle_s) as idle:
                    frame = await requests.receive()
                if idle.cancelled_caught:
                    refusal = (GOING_AWAY, f"no request for {idle_s:g} s")
                    break
                try:
                    caller = authorize()
                except APIError as error:
                    waiting.end_first(error.status)
                    await socket.send_text(error_text(error))
                    refusal = (POLICY_VIOLATION, "not authorized")
                    break
                try:
                    check_refused(caller)
                except APIError as error:
                    waiting.end_first(error.status)
                    await socket.send_text(error_text(error))
                    refusal = (TOO_MANY, "too many requests were refused")
                    break
                reply = _reply(frame, caller, service, limiter, waiting)
                frame = None  # the request has what its reply needs
                async with aclosing(reply) as texts:
                    async for text in texts:
                        await socket.send_text(text)
        except WebSocketDisconnect:
            requests.close()
            await anyio.sleep_forever()  # `listen` cancels it after the last frame that arrived
        finally:
            waiting.close()
        group.cancel_scope.cancel()
    if refusal is not None and socket.application_state is WebSocketState.CONNECTED:
        await socket.close(*refusal)


class _WaitingFrames:
    """Frames of one connection that are neither admitted nor refused yet, counted with all frames of its key.

    If a client goes away before its frames are read, they are charged, because receiving them cost memory and time.
    """

    def __init__(self, characters: Counter[str], key: str, charge: Callable[..., None]) -> None:
        self._characters, self._key, self._charge = characters, key, charge
        self._sizes: deque[int] = deque()

    def add(self, size: int) -> bool:
        """Count a frame. False if the waiting frames of the key are too long together."""
        self._sizes.append(size)
        waiting = self._characters[self._key]
        self._characters[self._key] += size
        return not waiting or waiting + size <= WAITING_CHARACTERS

    def end_first(self, status: int | None = None) -> None:
        """Remove the oldest frame. If it was refused with a status, it is charged."""
        size = self._sizes.popleft()
        self._characters[self._key] -= size
        if not self._characters[self._key]:
            del self._characters[self._key]
        if status is None:
            take_cpu_s()  # reading an admitted frame is not charged to the next one
        else:
            self._charge(size, status=status)

    def close(self) -> None:
        """Charge the frames that still wait, because their client is gone."""
        while self._sizes:
            self.end_first(_CLIENT_GONE)


async def _reply(
    frame: str | None, caller: Caller, service: Service, limiter: Limiter, waiting: _WaitingFrames
) -> AsyncGenerator[str]:
    """Frames of the reply to one request."""

    async def read_and_begin() -> ChatHandler:
        nonlocal frame
        request = await _read(frame, caller, service)
        frame = None
        return await service.begin(request, caller)

    try:
        handler = await admit(read_and_begin, service, limiter, caller)
    except APIError as error:
        waiting.end_first(error.status)
        yield error_text(error)
        return
    except GRPOError as error:
        waiting.end_first(500)
        logger.error("a request failed: %s", error)
        yield error_text(APIError(500, "the server failed on this request. Its log has the cause", type="server_error"))
        return
    waiting.end_first()
    service.streaming += 1
    try:
        async with aclosing(chunks(handler, with_usage=handler.request.with_usage)) as stream:
            async for ready in stream:
                for chunk in ready:
                    yield error_text(chunk) if isinstance(chunk, APIError) else json_text(chunk)
    finally:
        service.streaming -= 1
        handler.admission.release()


async def _read(frame: str | None, caller: Caller, service: Service) -> ChatRequest:
    """Read the request of a frame, which is None if it is binary. Raises `APIError` as the HTTP route does."""
    if frame is None:
        raise invalid_request("the frame is binary. Send JSON as text", code="invalid_json")
    content = frame.encode(errors="surrogatepass")
    key, preparation = caller.key_hash, service.preparation
    if len(content) <= AT_ONCE:
        is_text = encodable(content)
    else:
        is_text = await preparation.run(key, len(content), partial(encodable, content))
    if not is_text:
        raise invalid_request("the frame holds half of a surrogate pair, which UTF-8 cannot hold", code="invalid_text")
    return await read_request(
        ChatRequest,
        content,
        preparation=preparation,
        key=key,
        most_ids=service.max_context,
        defaults={"stream": True},
    )


def parse_frame(frame: str | None) -> dict[str, Any]:
    """Read the JSON object of a short text frame. Raises `APIError`."""
    if frame is None:
        raise invalid_request("the frame is binary. Send JSON as text", code="invalid_json")
    if len(frame) > AT_ONCE:
        raise invalid_request(f"the frame has more than {AT_ONCE} characters", code="invalid_value")
    if not encodable(frame):
        raise invalid_request("the frame holds half of a surrogate pair, which UTF-8 cannot hold", code="invalid_text")
    return parse_object(frame.encode())


def error_text(error: APIError) -> str:
    """Frame of an error, with the status and wait that HTTP puts into headers. ASCII, as it may quote any text."""
    wait = {} if error.retry_after_s is None else {"retry_after_ms": max(1, math.ceil(error.retry_after_s * 1000))}
    return json.dumps({**error_body(error), "status": error.status, **wait})
