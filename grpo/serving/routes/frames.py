"""Frames that a client sends over a WebSocket: bounded while they wait, answered in order, and charged when refused.

Both sockets of the server read their frames here, so that neither of them answers an error that costs its key nothing.
This module does not know what a frame asks for, because each socket passes a function that answers one frame.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from grpo.serving.access.callers import Caller
from grpo.serving.access.preparation import AT_ONCE, take_cpu_s
from grpo.serving.protocol.api_errors import APIError, error_body, invalid_request
from grpo.serving.protocol.json_bounds import encodable
from grpo.serving.requests.request_body import parse_object

WAITING_REQUESTS = 8
"""Most requests that may wait for the reply before them."""
WAITING_CHARACTERS = 16 * 2**20
"""Most characters in all waiting frames of one key. A single frame may have more if no other frame waits."""
_CLIENT_GONE = 408
GOING_AWAY, TOO_MANY, POLICY_VIOLATION = 1001, 1013, 1008
"""Close codes: idle for too long, try again later, and not authorized."""
_MESSAGE_TOO_BIG = 1009
_NOT_AUTHORIZED = (POLICY_VIOLATION, "not authorized")


class WaitingFrames:
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


Answer = Callable[[str | None, Caller, WaitingFrames], AsyncGenerator[str]]
"""Frames of the answer to a frame, which is None if it is binary. The function calls `WaitingFrames.end_first` as soon
as the frame is admitted or refused."""


async def answer_frames(
    socket: WebSocket,
    answer: Answer,
    characters: Counter[str],
    check_refused: Callable[[Caller], None],
    *,
    idle_s: float = math.inf,
    push: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Answer the frames of one connection in order, until the client closes it.

    `characters` are the characters of waiting frames by key. If too many requests of a caller were refused,
    `check_refused` raises `APIError`, and the connection is closed. It is also closed after `idle_s` seconds without a
    frame. `push` sends frames of its own, and raises `APIError` if the caller is not authorized any more. With it,
    frames that come too fast wait in the connection. Without it the connection is closed, because it would otherwise
    only notice after a long reply that the client has gone.
    """
    waiting = WaitingFrames(characters, socket.state.caller.key_hash, socket.state.charge)
    frames, requests = anyio.create_memory_object_stream[str | None](WAITING_REQUESTS)
    async with frames, requests, anyio.create_task_group() as group:
        connection = _Connection(
            socket=socket,
            waiting=waiting,
            frames=frames,
            requests=requests,
            end=group.cancel_scope.cancel,
        )
        if push is not None:
            group.start_soon(connection.push_until_gone, push)
        group.start_soon(partial(connection.listen, may_wait=push is not None))
        try:
            await connection.answer_until_refused(answer, check_refused, idle_s)
            if connection.refusal is None:  # the client is gone
                requests.close()
                await anyio.sleep_forever()  # `listen` cancels it after the last frame that arrived
        finally:
            waiting.close()
        group.cancel_scope.cancel()
    if connection.refusal is not None and socket.application_state is WebSocketState.CONNECTED:
        await socket.close(*connection.refusal)


@dataclass(slots=True, kw_only=True)
class _Connection:
    """One connection while its frames are answered.

    Three tasks share it. `listen` receives frames, `answer_until_refused` answers them in order, and `push_until_gone`
    sends other frames. Whichever notices that the connection has to be closed sets `refusal`.
    """

    socket: WebSocket
    waiting: WaitingFrames
    frames: MemoryObjectSendStream[str | None]
    requests: MemoryObjectReceiveStream[str | None]
    """Other end of `frames`."""
    end: Callable[[], None]
    """Cancels all three tasks."""
    answering: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    refusal: tuple[int, str] | None = None
    """Code and reason with which the server closes the connection. None if the client closes it."""

    async def listen(self, *, may_wait: bool) -> None:
        """Receive frames until the client closes the connection, or too many frames wait.

        If `may_wait` is True, a frame that comes too fast waits in the connection instead.
        """
        while (message := await self.socket.receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            if not self.waiting.add(len(text or message.get("bytes") or "")):
                self.refusal = (TOO_MANY, f"more than {WAITING_CHARACTERS} characters of this key's requests wait")
                break
            try:
                if may_wait:
                    await self.frames.send(text)
                else:
                    self.frames.send_nowait(text)
            except anyio.BrokenResourceError:
                continue  # the client is gone, so that its frame is only charged
            except anyio.WouldBlock:
                self.refusal = (TOO_MANY, f"more than {WAITING_REQUESTS} requests wait")
                break
        if message.get("code") == _MESSAGE_TOO_BIG:
            self.socket.state.charge(0, status=413)
        self.end()

    async def push_until_gone(self, push: Callable[[], Awaitable[None]]) -> None:
        """Send the frames of `push` until the client is gone or not authorized any more."""
        try:
            await push()
        except WebSocketDisconnect:
            self.answering.cancel()
        except APIError:
            self.refusal = _NOT_AUTHORIZED
            self.end()

    async def answer_until_refused(
        self, answer: Answer, check_refused: Callable[[Caller], None], idle_s: float
    ) -> None:
        """Answer one frame after another until the client is gone, or until `refusal` is set."""
        with self.answering, suppress(WebSocketDisconnect):
            while self.refusal is None:
                with anyio.move_on_after(idle_s) as idle:
                    frame = await self.requests.receive()
                if idle.cancelled_caught:
                    self.refusal = (GOING_AWAY, f"no request for {idle_s:g} s")
                    break
                caller = await self._authorize(check_refused)
                if caller is None:
                    break
                texts = answer(frame, caller, self.waiting)
                frame = None  # the request has what its reply needs
                async with aclosing(texts):
                    async for text in texts:
                        await self.socket.send_text(text)

    async def _authorize(self, check_refused: Callable[[Caller], None]) -> Caller | None:
        """Caller of the oldest frame. If it may not send requests any more, charge the frame and set `refusal`."""
        closing = _NOT_AUTHORIZED
        try:
            caller: Caller = self.socket.state.authorize()
            closing = (TOO_MANY, "too many requests were refused")
            check_refused(caller)
        except APIError as error:
            self.waiting.end_first(error.status)
            await self.socket.send_text(error_text(error))
            self.refusal = closing
            return None
        return caller


def parse_frame(frame: str | None) -> dict[str, Any]:
    """Read the JSON object of a short text frame. Raises `APIError`."""
    if frame is None:
        raise invalid_request("the frame is binary. Send JSON as text", code="invalid_json")
    if len(frame) > AT_ONCE:
        raise invalid_request(f"the frame has more than {AT_ONCE} characters")
    if not encodable(frame):
        raise invalid_request("the frame holds half of a surrogate pair, which UTF-8 cannot hold", code="invalid_text")
    return parse_object(frame.encode())


def error_text(error: APIError) -> str:
    """Frame of an error, with the status and wait that HTTP puts into headers. ASCII, as it may quote any text."""
    wait = {} if error.retry_after_s is None else {"retry_after_ms": max(1, math.ceil(error.retry_after_s * 1000))}
    return json.dumps({**error_body(error), "status": error.status, **wait})
