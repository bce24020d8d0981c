"""The first message of Prefect's WebSockets, on Prefect's server as the tests have it and on a tiny application."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from grpo.serving.access.connections import ADMIT
from grpo.serving.access.uvicorn_protocols import FIRST_FRAME_BYTES
from grpo_local.login import CLIENT
from grpo_local.prefect_server.socket_login import SocketLoginMiddleware

pytestmark = pytest.mark.filterwarnings("ignore")
LOGIN = "grpo:a-long-password"
PLACES = ["events/in", "events/out", "logs/out", "task_runs/subscriptions/scheduled", "work_pools/x/workers/connect"]
NO_LOGINS: dict[str, tuple[str | bytes, int]] = {
    "list": ("[1]", 1008),
    "not JSON": ("{bad", 1008),
    "empty": ("", 1008),
    "nested": ("[" * 60_000, 1008),
    "not ASCII": (json.dumps({"type": "auth", "token": "é"}), 1008),
    "token of another type": (json.dumps({"type": "auth", "token": ["a"]}), 1008),
    "token that is null": (json.dumps({"type": "auth", "token": None}), 1008),
    "type of another type": (json.dumps({"type": ["auth"]}), 1008),
    "bytes": (b"{}", 1008),
    "long": ("A" * 9_000_000, 1009),
}


def _open(server: str, place: str) -> ClientConnection:
    address = f"{server.replace('http:', 'ws:')}/{place}"
    return connect(address, subprotocols=[Subprotocol("prefect")], open_timeout=240)


def _code(connection: ClientConnection) -> int | None:
    """Code by which the server closes the connection."""
    with pytest.raises(ConnectionClosed) as caught:
        connection.recv(240)
    return caught.value.rcvd.code if caught.value.rcvd else None


@pytest.fixture
def log(home: Path) -> Iterator[Path]:
    """Log of Prefect's server."""
    return home / "services" / "prefect.log"


@pytest.mark.parametrize("place", PLACES)
def test_a_message_that_is_no_login_closes_the_websocket(server: str, log: Path, place: str):
    """With a code, and without a line in the server's log."""
    before = log.stat().st_size
    for message, code in NO_LOGINS.values():
        with _open(server, place) as connection:
            connection.send(message)
            assert _code(connection) == code
    assert b"Traceback" not in log.read_bytes()[before:]


def test_a_login_opens_the_stream_of_events(server: str):
    """Prefect answers it, and closes after a wrong one."""
    for token in (os.environ[CLIENT], "wrong"):
        with _open(server, "events/out") as connection:
            connection.send(json.dumps({"type": "auth", "token": token}))
            if token == "wrong":
                assert _code(connection) == 1008
            else:
                assert json.loads(connection.recv(240)) == {"type": "auth_success"}


def test_silent_sockets_lock_nobody_out_of_prefect(server: str):
    """1,100 of them, when the server was started with a limit of 1,024 open files."""
    parts = urlsplit(server)
    with ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=240))
        assert httpx.get(f"{server}/health", timeout=60).status_code == 200


# --- the middleware


async def _echo(connection: WebSocket) -> None:
    await connection.accept()
    with suppress(WebSocketDisconnect):
        while True:
            await connection.send_json(await connection.receive_json())


def _client(admitted: list[str] | None = None, **options: Any) -> TestClient:
    """An application that sends back what it gets, behind the middleware."""
    app: ASGIApp = SocketLoginMiddleware(Starlette(routes=[WebSocketRoute("/", _echo)]), LOGIN, **options)

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[ADMIT] = lambda: (admitted if admitted is not None else []).append(scope["type"])
        await app(scope, receive, send)

    return TestClient(noting)


def test_a_websocket_without_a_message_is_closed():
    with _client(login_s=0.05).websocket_connect("/") as connection, pytest.raises(WebSocketDisconnect) as caught:
        connection.receive_json()
    assert caught.value.code == 1008


def test_messages_after_the_login_have_no_time_and_no_bound():
    """The second one comes after the time of the login, and is longer than a login may be."""
    long = {"text": "a" * FIRST_FRAME_BYTES}
    with _client(login_s=2.0).websocket_connect("/") as connection:
        for message, pause_s in (({"type": "auth", "token": LOGIN}, 0.0), (long, 2.1)):
            time.sleep(pause_s)
            connection.send_json(message)
            assert connection.receive_json() == message


@pytest.mark.parametrize(("token", "is_admitted"), [(LOGIN, True), ("wrong", False), (LOGIN[:-1], False)])
def test_the_right_login_keeps_the_connection_of_a_websocket(token: str, is_admitted: bool):
    admitted: list[str] = []
    with _client(admitted).websocket_connect("/") as connection:
        connection.send_json({"type": "auth", "token": token})
        connection.receive_json()
    assert admitted == ["websocket"] * is_admitted


@pytest.mark.parametrize(("login", "is_admitted"), [(("grpo", "a-long-password"), True), (("grpo", "x"), False)])
def test_the_right_login_keeps_the_connection_of_a_request(login: tuple[str, str], is_admitted: bool):
    admitted: list[str] = []
    _client(admitted).get("/", auth=login)
    assert admitted == ["http"] * is_admitted
