"""Checks of Host and Origin, and of the login, of Prefect's server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from grpo_local.login import CLIENT, ORIGINS, SERVER
from grpo_local.origins import TrustedOriginMiddleware
from grpo_local.prefect_server.app import _is_prefect_page
from grpo_local.prefect_server.description import DescriptionMiddleware
from tests.places import ROOT
from tests.ports import own_port

OWN = ("http://127.0.0.1:4200", "http://localhost:4200")


async def _listen(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


@pytest.fixture
def client() -> TestClient:
    """A server of two addresses that answers everything with 200."""
    routes = [
        Route("/{path:path}", lambda request: PlainTextResponse("hello"), methods=["GET", "POST", "OPTIONS"]),
        WebSocketRoute("/events", _listen),
    ]
    return TestClient(TrustedOriginMiddleware(Starlette(routes=routes), OWN, is_page=lambda path: path == "/page"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:4200"}, 200),
        ({"host": "localhost:4200"}, 200),
        ({"host": "127.0.0.1:4200", "origin": "http://localhost:4200"}, 200),
        ({"host": "127.0.0.1:4201"}, 403),
        ({"host": "127.0.0.1"}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:4200"}, 403),
        ({"host": "127.0.0.1:4200.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"host": "127.0.0.1:4200", "origin": "http://evil.example"}, 403),
        ({"host": "127.0.0.1:4200", "origin": "http://127.0.0.1:4201"}, 403),
        ({"host": "127.0.0.1:4200", "origin": "https://127.0.0.1:4200"}, 403),
        ({"host": "127.0.0.1:4200", "origin": "null"}, 403),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_request_names_an_address_of_the_server_and_comes_from_a_page_of_it(
    client: TestClient, headers: dict[str, str], status: int, method: str
):
    """For every method; programs send no Origin, and sandboxed pages the Origin null."""
    assert client.request(method, "/", headers=headers).status_code == status


_LINK = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize(
    ("site", "headers", "status"),
    [
        ("same-origin", {}, 200),
        ("none", {}, 200),
        ("cross-site", {}, 403),
        ("same-site", {}, 403),
        ("of-a-later-browser", {}, 403),
        ("", {}, 403),
        ("cross-site", {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, 403),
        ("same-site", {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"}, 403),
        ("cross-site", {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
        ("cross-site", {"sec-fetch-mode": "navigate", "sec-fetch-dest": "embed"}, 403),
        ("cross-site", {"sec-fetch-mode": "navigate"}, 403),
        ("cross-site", {"origin": OWN[1]}, 200),
        ("cross-site", {"origin": "http://evil.example", **_LINK}, 403),
    ],
    ids=lambda value: " ".join([*value.values(), "-"]) if isinstance(value, dict) else str(value),
)
@pytest.mark.parametrize("path", ["/page", "/api"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_of_another_page_is_refused_also_where_it_has_no_origin(
    client: TestClient, site: str, headers: dict[str, str], status: int, path: str, method: str
):
    """A picture, a script, a fetch without CORS, a frame; a page of the same host and another port is another page."""
    sent = {"host": "127.0.0.1:4200", "sec-fetch-site": site, **headers}
    assert client.request(method, path, headers=sent).status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/page", 200), ("GET", "/api", 403), ("POST", "/page", 403)]
)
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_to_a_page_may_be_followed_from_anywhere(
    client: TestClient, method: str, path: str, status: int, site: str
):
    """The browser shows the page of the server by itself; no link leads into the API, and no form is sent."""
    sent = {"host": "127.0.0.1:4200", "sec-fetch-site": site, **_LINK}
    assert client.request(method, path, headers=sent).status_code == status


def test_a_second_value_does_not_smuggle_one_in(client: TestClient):
    """Each header of the name is checked."""
    sites = [("host", "127.0.0.1:4200"), ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")]
    assert client.get("/api", headers=sites).status_code == 403
    modes = [("host", "127.0.0.1:4200"), ("sec-fetch-site", "cross-site"), *_LINK.items(), ("sec-fetch-dest", "image")]
    assert client.get("/page", headers=modes).status_code == 403


@pytest.mark.parametrize(
    ("path", "is_page"),
    [
        ("/", True),
        ("/deployments", True),
        ("/runs/flow-run/1", True),
        ("/apis", True),
        ("/api", False),
        ("/api/", False),
        ("/api/admin/settings", False),
        ("/openapi.json", False),
        ("/docs/oauth2-redirect", False),
    ],
)
def test_pages_of_prefect_are_what_is_not_its_api(path: str, is_page: bool):
    """Its application answers with the page under every other path."""
    assert _is_prefect_page(path) is is_page


def test_a_second_host_or_origin_does_not_smuggle_one_in(client: TestClient):
    """All headers of the name are checked, not the first alone."""
    hosts = [("host", "127.0.0.1:4200"), ("host", "evil.example")]
    origins = [("host", "127.0.0.1:4200"), ("origin", OWN[0]), ("origin", "http://evil.example")]
    assert client.get("/", headers=hosts).status_code == 403
    assert client.get("/", headers=origins).status_code == 403


def test_a_websocket_of_a_foreign_page_is_refused(client: TestClient):
    """A browser sends no CORS preflight before it opens one."""
    with client.websocket_connect("/events", headers={"host": "127.0.0.1:4200", "origin": OWN[0]}) as socket:
        assert socket.receive_text() == "hello"
    link = {"host": "127.0.0.1:4200", "sec-fetch-site": "same-site", **_LINK}
    foreign = {"host": "127.0.0.1:4200", "origin": "http://evil.example"}
    for headers in (foreign, {"host": "evil.example"}, link):
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/events", headers=headers):
            pass


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({ORIGINS: OWN[0]}, SERVER),
        ({ORIGINS: OWN[0], SERVER: "short"}, "has only 5 characters"),
        ({SERVER: "grpo:a-long-password"}, ORIGINS),
        ({ORIGINS: "*", SERVER: "grpo:a-long-password"}, ORIGINS),
        ({ORIGINS: "127.0.0.1:4200", SERVER: "grpo:a-long-password"}, ORIGINS),
    ],
    ids=["no login", "short login", "no addresses", "every origin", "no scheme"],
)
def test_a_server_that_would_answer_anyone_is_not_started(tmp_path: Path, variables: dict[str, str], message: str):
    """The error names the variable, as in a container without its secret."""
    kept = {name: value for name, value in os.environ.items() if name not in (SERVER, CLIENT, ORIGINS)}
    environment = {**kept, "PREFECT_HOME": str(tmp_path), "PREFECT_SERVER_API_PORT": str(own_port()), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "grpo_local.prefect_server.app"],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/openapi.json", 404),
        ("/open%61pi.json", 404),
        ("/openapi.json/", 404),
        ("/docs", 404),
        ("/docs/oauth2-redirect", 404),
        ("/redoc", 404),
        ("/api/openapi.json", 404),
        ("/api/docs", 404),
        ("/", 200),
        ("/api/flows/filter", 200),
        ("/docs-of-ours", 200),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_the_description_of_the_api_is_switched_off(path: str, status: int, method: str):
    """It needs no login, keeps the server for seconds, and its pages load programs of another host."""
    routes = [Route("/{path:path}", lambda request: PlainTextResponse("hello"), methods=["GET", "POST"])]
    client = TestClient(DescriptionMiddleware(Starlette(routes=routes)))
    assert client.request(method, path).status_code == status
