"""Counts of HTTP requests by route and status. They are taken outside of the guard, so that refused requests count."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from grpo.serving.metrics import Metrics

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestCounts:
    """ASGI middleware that counts requests. A request that reaches no route, e.g. without a key, counts as `none`."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if connection["type"] != "http":
            await self._app(connection, receive, send)
            return
        code = "none"

        async def send_counted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = str(message["status"])
            await send(message)

        try:
            await self._app(connection, receive, send_counted)
        finally:
            route = getattr(connection.get("route"), "path", "none")
            method = connection["method"] if connection["method"] in _METHODS else "other"
            self._metrics.observe_request(route, method, code)
