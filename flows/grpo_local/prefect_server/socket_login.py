"""Check of the first message of Prefect's WebSockets, by which its clients log in.

Prefect opens a WebSocket for anyone, waits for `{"type": "auth", "token": …}` without a time limit, and fails with a
traceback if the message is something else. Prefect itself checks the token, and
`grpo.serving.access.uvicorn_protocols` bounds the size of the message.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from typing import Any

from starlette.datastructures import Headers
from starlette.status import WS_1008_POLICY_VIOLATION
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpo.serving.access.connections import admit

LOGIN_S = 10.0
"""Time after the opening of a WebSocket within which its client has to log in."""


class SocketLoginMiddleware:
    """ASGI middleware that closes a WebSocket if its first message is late or is not a login.

    A request or WebSocket with the right login keeps its connection when new connections need room.
    """

    def __init__(self, app: ASGIApp, login: str, *, login_s: float = LOGIN_S) -> None:
        self._app, self._login, self._login_s = app, login.encode(), login_s
        self._credentials = b"Basic " + base64.b64encode(self._login)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the connection."""
        if scope["type"] == "websocket":
            socket = _Socket(receive, send, self._login_s)
            await self._app(scope, lambda: self._receive(socket, scope), socket.send)
            return
        if scope["type"] == "http":
            given = Headers(scope=scope).getlist("authorization")
            if len(given) == 1 and hmac.compare_digest(given[0].encode("latin-1"), self._credentials):
                admit(scope)
        await self._app(scope, receive, send)

    async def _receive(self, socket: _Socket, scope: Scope) -> Message:
        message, token = await socket.receive()
        if token is not None and hmac.compare_digest(token.encode(), self._login):
            admit(scope)
        return message


class _Socket:
    """WebSocket that expects a login as the first message after its opening, or else its end."""

    def __init__(self, receive: Receive, send: Send, login_s: float) -> None:
        self._receive, self._send, self._login_s = receive, send, login_s
        self._is_open = self._has_logged_in = False

    async def send(self, message: Message) -> None:
        """Note the opening."""
        self._is_open = self._is_open or message["type"] == "websocket.accept"
        await self._send(message)

    async def receive(self) -> tuple[Message, str | None]:
        """Next message, and the token of the first one."""
        if not self._is_open or self._has_logged_in:
            return await self._receive(), None
        try:
            async with asyncio.timeout(self._login_s):
                message = await self._receive()
        except TimeoutError:
            return await self._close(f"no login within {self._login_s:g} s"), None
        if message["type"] != "websocket.receive":
            return message, None
        text = message.get("text")
        token = None if text is None else _token(text)
        if token is None:
            return await self._close("the first message is not a login"), None
        self._has_logged_in = True
        return message, token

    async def _close(self, reason: str) -> Message:
        end = {"code": WS_1008_POLICY_VIOLATION, "reason": reason}
        await self._send({"type": "websocket.close", **end})
        return {"type": "websocket.disconnect", **end}


def _token(text: str) -> str | None:
    """Token of a login message, empty if it has none. None for any other message."""
    try:
        message: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or message.get("type") != "auth":
        return None
    token = message.get("token", "")
    return token if isinstance(token, str) and token.isascii() else None
