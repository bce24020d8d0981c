"""A real server of an app on a free port, in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp


@contextmanager
def serving(app: ASGIApp) -> Iterator[int]:
    """Serve an app; yields the port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        # with "auto", uvicorn takes an app that is wrapped in a plain function for one of an old interface
        config = uvicorn.Config(app, log_level="critical", ws="websockets-sansio", lifespan="off", interface="asgi3")
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
