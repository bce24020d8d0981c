"""Upgrades, CONNECT and HTTP/1.0 on a real server. Bounds on connections are in `test_connections`."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from io import BytesIO

import pytest
from starlette.types import Receive, Scope, Send

from grpo.serving.access.connections import Connections
from grpo.serving.access.uvicorn_protocols import PIPELINED
from tests.grpo.serving.servers import request, serving

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"
"""A body that is a request if it is not read as a body."""
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
LENGTH = b"content-length: %d\r\n" % len(HIDDEN)
HTTP_2 = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
WEBSOCKET = (
    b"connection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


async def echo(connection: Scope, receive: Receive, send: Send) -> None:
    """Answer with the path and the body. `/stream` has no length, and no path is a WebSocket."""
    if connection["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    parts = [connection["path"].encode(), b" ", body]
    assert b"upgrade" not in dict(connection["headers"])
    is_stream = connection["path"] == "/stream"
    headers = [] if is_stream else [(b"content-length", b"%d" % sum(len(part) for part in parts))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(echo, bounded=Connections(most=100, per_address=100, head_s=60.0)) as port:
        yield port


class _Received(BytesIO):
    """Received bytes as a socket, from which `http.client` can read several responses."""

    def makefile(self, *_: object) -> _Received:
        return self

    def close(self) -> None:
        """Stay open, because the next response follows."""


def responses(received: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each response. Fails if anything else was received."""
    connection, read = _Received(received), []
    while connection.tell() < len(received):
        response = HTTPResponse(connection)  # type: ignore[arg-type]
        response.begin()
        read.append((response.status, response.read()))
    return read


def sent(port: int, *parts: bytes) -> list[tuple[int, bytes]]:
    """Send the parts one by one, and read all responses until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return responses(received)


@pytest.mark.parametrize("split", ["whole", "head", "bytes"])
@pytest.mark.parametrize("framed", [LENGTH + b"\r\n" + HIDDEN, b"transfer-encoding: chunked\r\n\r\n" + CHUNKS])
@pytest.mark.parametrize(
    "upgrade",
    [HTTP_2, b"upgrade: TLS/1.0\r\nconnection: upgrade\r\n", b"connection: upgrade\r\nupgrade: websocket, h2c\r\n"],
)
def test_an_upgrade_that_is_not_offered_is_ignored(port: int, upgrade: bytes, framed: bytes, split: str):
    """The body is read as a body, and the requests behind it are answered after it."""
    post = b"POST /first HTTP/1.1\r\nhost: x\r\n" + upgrade + framed
    get = b"GET /second HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n"
    everything = post + get + LAST
    head = post.index(b"\r\n\r\n") + 4
    parts = {
        "whole": [everything],
        "head": [everything[:head], everything[head:]],
        "bytes": [everything[at : at + 1] for at in range(len(everything))],
    }
    assert sent(port, *parts[split]) == [(200, b"/first " + HIDDEN), (200, b"/second "), (200, b"/last ")]


def test_a_request_with_an_upgrade_may_ask_to_close_the_connection(port: int):
    """Then the bytes behind its body are no request."""
    head = b"POST /first HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n"
    assert sent(port, head + LENGTH + b"\r\n" + HIDDEN + LAST) == [(200, b"/first " + HIDDEN)]


def test_pipelined_requests_with_an_upgrade_are_bounded(port: int):
    """The connection is closed without an answer."""
    get = b"GET / HTTP/1.1\r\nhost: x\r\n" + HTTP_2 + b"\r\n"
    assert request(port, get * (PIPELINED + 2)) == b""
    assert len(sent(port, get * PIPELINED + LAST)) == PIPELINED + 1


def test_an_upgrade_of_http_1_0_is_ignored(port: int):
    """RFC 9110 §7.8 asks for it, also for WebSockets."""
    head = b"POST /first HTTP/1.0\r\nhost: x\r\n" + WEBSOCKET + LENGTH + b"\r\n"
    assert sent(port, head + HIDDEN + LAST) == [(200, b"/first " + HIDDEN)]


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\nhost: x\r\n" + LENGTH + WEBSOCKET, 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n" + WEBSOCKET, 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + WEBSOCKET, 403),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n" + HTTP_2 + LENGTH, 400),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n" + WEBSOCKET, 400),
    ],
)
def test_nothing_behind_a_refused_handshake_is_a_request(port: int, head: bytes, status: int, wait: bool):
    """Neither in the packet of the head nor after the answer. `websockets` has a status of its own for POST."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head + b"\r\n" + (b"" if wait else HIDDEN + LAST))
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
                if wait:
                    connection.sendall(HIDDEN + LAST)
        except ConnectionError:
            pass
    assert [answer for answer, _ in responses(received)] == [status]


@pytest.mark.parametrize("content", [b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n" + LAST, b"\x16\x03\x01\x00\r\n\r\n"])
def test_a_request_that_cannot_be_read_gets_an_error_of_the_api(port: int, content: bytes):
    """Status 400 with a body in JSON, and the end of the connection."""
    [(status, body)] = responses(request(port, content))
    error = json.loads(body)["error"]
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_http")


@pytest.mark.parametrize("connection", [b"", b"connection: keep-alive\r\n"])
def test_a_body_without_a_length_ends_with_the_connection_of_http_1_0(port: int, connection: bytes):
    """RFC 9112 §6.1 forbids chunks for HTTP/1.0. HTTP/1.1 gets them."""
    head, _, body = request(port, b"GET /stream HTTP/1.0\r\n" + connection + b"\r\n").partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert body == b"/stream "
    chunked = request(port, b"GET /stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert b"transfer-encoding: chunked\r\n" in chunked
    assert chunked.endswith(b"\r\n0\r\n\r\n")


def test_a_body_of_http_1_0_keeps_its_length(port: int):
    assert b"content-length: 7\r\n" in request(port, b"GET /whole HTTP/1.0\r\n\r\n")
    assert request(port, b"HEAD /stream HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\n")
