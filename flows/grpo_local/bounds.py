"""Bounds on the connections of Prefect's and MLflow's servers, as the chat server has them.

`uvicorn_options()` names the protocols, because uvicorn imports them in each process of a server with several workers,
and each process counts its own connections. Bodies have no bound and no time limit, because artifacts are large.
Workers keep WebSockets for days, so only the first message of a WebSocket is bounded, until its login was checked.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from grpo.serving.access.connections import Connections, admit, default_connections
from grpo.serving.access.uvicorn_protocols import BoundedHttp, BoundedSocket

_STALL_S = 300.0
"""Time in which the client has to take a byte, because a program may work on a part of an artifact before the next."""


@cache
def _book() -> Connections:
    """Connections of this process. One address may have half of them, because workers share this machine's address."""
    most = default_connections()
    return Connections(most=most, per_address=max(1, most // 2), stall_s=_STALL_S)


class Http(BoundedHttp):
    """HTTP of this process's server."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.book = _book()
        super().__init__(*arguments, **named)


class Socket(BoundedSocket):
    """WebSockets of this process's server."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.book = _book()
        super().__init__(*arguments, **named)


def uvicorn_options() -> dict[str, Any]:
    """Options of `uvicorn.run`. Also raises the limit of open files, which the workers of the server inherit."""
    default_connections()
    return {"http": f"{__name__}:Http", "ws": f"{__name__}:Socket"}


class Admitted:
    """ASGI middleware behind a login. A request that reaches it keeps its connection when new ones need room.

    Probes are an exception.
    """

    def __init__(self, app: ASGIApp, *, public: str) -> None:
        self._app, self._public = app, public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request."""
        if scope["type"] != "lifespan" and scope["path"] != self._public:
            admit(scope)
        await self._app(scope, receive, send)
