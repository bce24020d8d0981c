"""Servers at the addresses of Prefect and MLflow: the right ones, other programs, and ones that lack their database."""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grpo_local import server_answers
from grpo_local.login import Server
from grpo_local.server_answers import UNKNOWN, UnusableServer, served_version

Replies = dict[str, tuple[int, str, bytes]]
"""Status, type and body by path. `*` is for all other paths."""
Start = Callable[[Replies], str]
_OK = (200, "text/plain", b"OK")
_PAGE = (200, "text/html", b"<html>\n<h1>Sign in</h1></html>")
_SETTINGS: dict[Server, str] = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
_RECORDS: dict[Server, str] = {"prefect": "/ready", "mlflow": "/api/2.0/mlflow/experiments/search?max_results=1"}


def _healthy(server: Server) -> Replies:
    """Replies of a server whose database is up."""
    version = ("/admin/version", b'"3.1.0"') if server == "prefect" else ("/version", b"3.1.0")
    return {
        "/health": _OK,
        version[0]: (200, "application/json", version[1]),
        _RECORDS[server]: (200, "application/json", b"{}"),
    }


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a server with these replies, and return its address."""
    servers: list[ThreadingHTTPServer] = []

    def started(replies: Replies) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = replies.get(self.path) or replies.get("*") or (404, "text/html", b"<p>no page</p>")
                if status == 0:
                    time.sleep(2)
                    return
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def _version(server: Server, url: str) -> str:
    return served_version(server, url, setting=_SETTINGS[server], login=None)


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_a_server_with_its_database_states_its_version(start: Start, server: Server):
    """Also at an address with a slash at its end, and if it is a later one without some of the pages."""
    url = start(_healthy(server))
    assert _version(server, url) == _version(server, f"{url}/") == "3.1.0"
    assert _version(server, start({"/health": _OK})) == UNKNOWN


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
@pytest.mark.parametrize(
    ("reply", "quoted"),
    [(_PAGE, "'<html> <h1>Sign in</h1></html>'"), ((200, "text/plain", b""), "an empty reply")],
    ids=["login page", "empty"],
)
def test_another_program_is_not_taken_for_a_server(
    start: Start, server: Server, reply: tuple[int, str, bytes], quoted: str
):
    """Its health page answers 200, too. MLflow's client would take the empty reply for an empty registry."""
    url = start({"*": reply})
    with pytest.raises(UnusableServer) as caught:
        _version(server, url)
    assert caught.value.wrong_input
    assert url in caught.value.detail
    assert quoted in caught.value.detail
    assert _SETTINGS[server] in caught.value.remedy
    records = start({**_healthy(server), _RECORDS[server]: reply})
    with pytest.raises(UnusableServer, match="is not"):
        _version(server, records)


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_a_server_without_its_database_is_refused_at_once(start: Start, server: Server):
    """Its health page and its version are well. MLflow's client would try again for four minutes."""
    down = (503, "application/json", b'{"message": "Database is not available"}')
    started_at = time.monotonic()
    with pytest.raises(UnusableServer, match=r"with HTTP 503 \(.*Database is not available.*\)") as caught:
        _version(server, start({**_healthy(server), _RECORDS[server]: down}))
    assert time.monotonic() - started_at < 4
    assert not caught.value.wrong_input


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_a_server_that_waits_for_its_database_is_refused(start: Start, server: Server, monkeypatch: pytest.MonkeyPatch):
    """MLflow's client would wait for sixteen minutes."""
    monkeypatch.setattr(server_answers, "_RECORDS_S", 0.3)
    with pytest.raises(UnusableServer, match="does not answer: timed out"):
        _version(server, start({**_healthy(server), _RECORDS[server]: (0, "", b"")}))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "MLflow at .* refuses the login. Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        (404, "answers GET /health with HTTP 404. Look into its log"),
        (502, "answers GET /health with HTTP 502. Look into its log"),
    ],
)
def test_a_server_that_answers_with_an_error_is_not_said_to_be_down(start: Start, status: int, message: str):
    """The remedy is not to start it. The page of a proxy is not quoted."""
    with pytest.raises(UnusableServer, match=message) as caught:
        _version("mlflow", start({"*": (status, "text/html", b"<html>a long page</html>")}))
    assert "Start it" not in str(caught.value)
    assert "long page" not in str(caught.value)


def test_the_installed_versions_are_versions():
    """Otherwise a server of the installed release would be refused."""
    for package in ("mlflow", "prefect"):
        assert server_answers._VERSION.fullmatch(importlib.metadata.version(package))
