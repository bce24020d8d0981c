"""Each mode of the proxy, as a client of a real HTTP server sees it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.chaos.proxy import Proxy

BODY = b"x" * 10_000


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy before a server that answers each GET with `BODY`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Proxy(server.server_port, delay_s=0.01) as running:
            yield running
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[httpx.Client]:
    """A client with an open connection, which has had one answer."""
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", timeout=60) as opened:
        assert opened.get("/first").content == BODY
        yield opened


def test_requests_pass_and_are_seen(proxy: Proxy, client: httpx.Client):
    """Also slowly, and on a connection that is used again."""
    proxy.mode = "slow"
    assert client.get("/second?a=1").content == BODY
    assert proxy.requests == ["GET /first", "GET /second?a=1"]
    assert proxy.wait_for("GET /sec", after=1, patience_s=240, alive=lambda: True)
    assert not proxy.wait_for("GET /first", after=1, patience_s=240, alive=lambda: False)


def test_refused_connections_are_refused_and_open_ones_reset(proxy: Proxy, client: httpx.Client):
    """Nothing listens at the port; afterwards the same port answers again."""
    proxy.mode = "refuse"
    with pytest.raises(httpx.TransportError):
        client.get("/")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{proxy.port}/")
    proxy.mode = "pass"
    assert client.get("/").content == BODY


def test_a_hanging_server_answers_when_it_goes_on(proxy: Proxy, client: httpx.Client):
    """The request waits, without an error, and is answered in the end."""
    proxy.mode = "hang"
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.get, "/")
        assert proxy.wait_for("GET /$", patience_s=240, alive=lambda: True)
        with pytest.raises(StillWaiting):
            answer.result(timeout=0.2)
        proxy.mode = "pass"
        assert answer.result(timeout=60).content == BODY


def test_a_cut_reply_is_an_error_and_an_unavailable_server_answers_503(proxy: Proxy, client: httpx.Client):
    """On connections that were open before."""
    proxy.mode = "cut"
    with pytest.raises(httpx.TransportError):
        client.get("/")
    proxy.mode = "unavailable"
    assert client.get("/").status_code == 503
    proxy.mode = "pass"
    assert client.get("/").status_code == 200


def test_a_server_that_is_away_is_seen_as_it_is():
    """The connection ends without an answer."""
    with Proxy(1) as proxy, pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{proxy.port}/")
