"""Addresses between a rollout and a real server, which forward requests, record turns, and fail as a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from grpo.policy.servers.protocol import TURNS

Forward = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
Answer = Callable[[dict[str, Any], Forward], Awaitable[dict[str, Any] | Response]]
"""Answer to the body of a turn. `forward` returns the reply of the real server to a body."""


async def _forwarded(body: dict[str, Any], forward: Forward) -> dict[str, Any]:
    return await forward(body)


class Relay:
    """A server in front of the server at `target`."""

    def __init__(self, target: str, answer: Answer = _forwarded) -> None:
        self.turns: list[dict[str, Any]] = []
        """Bodies of the turns that it was asked for."""
        self.url = ""
        self._answer = answer
        self._target = target
        self._client: httpx.AsyncClient
        route = Route("/{path:path}", self._handle, methods=["GET", "PUT", "POST"])
        app = Starlette(routes=[route], lifespan=self._connected)
        config = uvicorn.Config(app, log_level="critical", loop="asyncio", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)

    def die(self) -> None:
        """Drop all connections and refuse new ones, as a killed process does. Call it on the relay's event loop."""
        for listener in self.server.servers:
            listener.close()
        for connection in list(self.server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]

    @asynccontextmanager
    async def _connected(self, _: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=self._target, timeout=60) as self._client:
            yield

    async def _handle(self, request: Request) -> Response:
        content = await request.body()
        headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}

        async def send(body: dict[str, Any] | bytes) -> httpx.Response:
            what: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
            return await self._client.request(request.method, request.url.path, headers=headers, **what)

        if request.url.path != TURNS:
            response = await send(content)
            return Response(response.content, response.status_code)
        body = await request.json()
        self.turns.append(body)

        async def forward(changed: dict[str, Any]) -> dict[str, Any]:
            headers.pop("content-type", None)
            return dict((await send(changed)).raise_for_status().json())

        answer = await self._answer(body, forward)
        return answer if isinstance(answer, Response) else JSONResponse(answer)


@contextmanager
def relay(target: str, answer: Answer = _forwarded) -> Iterator[Relay]:
    """Run a relay until the block ends."""
    running = Relay(target, answer)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=running.server.run, args=([listener],))
        thread.start()
        while not running.server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        running.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield running
        finally:
            running.server.should_exit = True
            thread.join()
