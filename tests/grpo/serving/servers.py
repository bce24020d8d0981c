"""A real server of an app on a free port, in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from grpo.serving.access.connections import Connections
from grpo.serving.access.uvicorn_protocols import bounded_protocols


@contextmanager
def serving(app: ASGIApp, *, bounded: Connections | None = None) -> Iterator[int]:
    """Serve an app, with the protocols of `grpo serve` if connections are `bounded`; yields the port."""
    protocols: tuple[Any, Any] = ("auto", "websockets-sansio") if bounded is None else bounded_protocols(bounded)

    async def call_app(scope: Scope, receive: Receive, send: Send) -> None:
        """The app with a signature that uvicorn can read, also in a mutation run, which wraps its methods."""
        await app(scope, receive, send)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        http, sockets = protocols
        config = uvicorn.Config(call_app, log_level="critical", http=http, ws=sockets, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def request(port: int, content: bytes, *, patience_s: float = 30.0) -> bytes:
    """The answer to raw bytes; a server that waits for more of them is left after `patience_s`."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as connection, suppress(OSError):
        connection.settimeout(patience_s)
        with suppress(ConnectionError):  # the server may answer before it has read everything
            connection.sendall(content)
        while chunk := connection.recv(65536):
            answer += chunk
    return answer
