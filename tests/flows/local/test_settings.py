"""Environment variables that every command sets, and debug messages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import requests

from grpo.environment_variables import variables_set
from grpo.errors import ConfigError
from grpo.storage.home import home
from grpo_local import settings
from grpo_local.managed_process import _answers
from grpo_local.servers import prefect_service
from tests.places import ROOT

_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


def test_telemetry_of_all_packages_is_off():
    """Their variables are set in the environment of the command."""
    code = (
        "from grpo_local import settings; settings.apply(); import os;"
        "print(os.environ['DO_NOT_TRACK'], os.environ['PREFECT_SERVER_ANALYTICS_ENABLED'],"
        "os.environ['MLFLOW_DISABLE_TELEMETRY'], os.environ['GX_ANALYTICS_ENABLED'], os.environ['HF_HUB_OFFLINE'])"
    )
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["1", "false", "true", "false", "1"]


@pytest.mark.parametrize(("value", "enabled"), [("1", True), ("0", False)])
def test_grpo_debug_enables_debug_messages(value: str, enabled: bool):
    """Of this project alone: other loggers keep their level."""
    code = (
        "import logging; from grpo_local import settings; settings.enable_debug_logging();"
        "logging.getLogger('grpo_tasks.execution.executor').debug('ours'); logging.getLogger('urllib3').debug('theirs')"
    )
    environment = {**os.environ, "GRPO_DEBUG": value, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ("DEBUG grpo_tasks.execution.executor: ours" in done.stderr) is enabled
    assert "theirs" not in done.stderr


class _Server(BaseHTTPRequestHandler):
    """A server of this machine."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@pytest.mark.parametrize(
    ("no_proxy", "after"),
    [
        (None, "127.0.0.1,localhost,::1"),
        ("db.internal, localhost", "db.internal,localhost,127.0.0.1,::1"),
        ("*", "*"),
    ],
)
def test_servers_of_this_machine_are_not_reached_through_a_proxy(no_proxy: str | None, after: str):
    """Nothing listens at the proxy. Clients of all three kinds still reach a server at 127.0.0.1."""
    none: dict[str, str | None] = dict.fromkeys(_PROXIES)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        with variables_set({**none, "http_proxy": "http://127.0.0.1:9", "NO_PROXY": no_proxy}):
            settings.bypass_proxies()
            assert os.environ["no_proxy" if no_proxy != "*" else "NO_PROXY"] == os.environ["NO_PROXY"] == after
            assert _answers(url)
            assert httpx.get(url).text == requests.get(url, timeout=5).text == "here"
        server.shutdown()


def test_without_a_proxy_no_variable_of_proxies_is_set():
    """A variable that nobody needs is not passed to servers and workers."""
    with variables_set(dict.fromkeys(_PROXIES)):
        settings.bypass_proxies()
        assert not {"no_proxy", "NO_PROXY"} & set(os.environ)


def test_blanks_around_addresses_and_line_ends_of_logins_are_removed(tmp_path: Path):
    """They come from web pages and files. An empty address counts as not set, and a password keeps its blank."""
    given = {
        "GRPO_HOME": str(tmp_path),
        "PREFECT_API_URL": " http://127.0.0.1:9/api \n",
        "MLFLOW_TRACKING_URI": "",
        "MLFLOW_TRACKING_PASSWORD": "s3cret \r\n",
    }
    code = (
        f"from grpo_local import settings; settings.apply(); import os;print([os.environ[name] for name in {[*given]}])"
    )
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **given}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    address = f"sqlite:///{tmp_path}/mlflow.db"
    assert done.stdout.strip() == repr([str(tmp_path), "http://127.0.0.1:9/api", address, "s3cret "])


@pytest.mark.parametrize("name", ["runs ", " runs", "runs\n"])
def test_a_home_with_a_blank_at_its_end_is_refused(name: str):
    """It would be another, empty folder, in which no model is registered."""
    with variables_set({"GRPO_HOME": name}), pytest.raises(ConfigError, match="with blanks or line ends around"):
        home()


def test_a_database_that_never_answers_is_not_waited_for(tmp_path: Path):
    """PostgreSQL's own client would wait without end, for example in `grpo migrate`."""
    code = (
        "from grpo_local import settings; settings.apply(); import sys;"
        "from grpo.storage.schemas import mlflow_schema; mlflow_schema(sys.argv[1])"
    )
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "GRPO_HOME": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"postgresql://me:secret@127.0.0.1:{silent.getsockname()[1]}/mlflow"
        done = subprocess.run(
            [sys.executable, "-c", code, uri],
            env=clean,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert "timeout expired. Check its address and login" in done.stderr


def test_the_servers_of_a_home_read_no_settings_of_another_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Prefect reads a `.env` of its working folder, and would serve its API below another path."""
    monkeypatch.setenv("PREFECT_SERVER_API_BASE_PATH", "/foo")
    monkeypatch.setenv("PREFECT_SERVER_API_HOST", "127.0.0.1")
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", "4200")
    server = prefect_service(tmp_path)
    assert server.working_folder == tmp_path
    assert "PREFECT_SERVER_API_BASE_PATH" not in server.variables


def test_addresses_of_stopped_servers_are_forgotten(tmp_path: Path):
    """Those that `grpo env` has exported. What the user has set, and what another home has exported, stays."""
    servers = {
        "PREFECT_API_URL": "http://127.0.0.1:9/api",
        "PREFECT_API_AUTH_STRING": "admin:a",
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "MLFLOW_TRACKING_USERNAME": "admin",
        "MLFLOW_TRACKING_PASSWORD": "b",
    }
    names = (*servers, settings.EXPORTED)

    def left(**given: str) -> list[str | None]:
        clean = dict.fromkeys(names) | servers | {"GRPO_HOME": str(tmp_path), **given}
        with variables_set(clean):
            settings.apply()
            return [os.environ.get(name) for name in names]

    own, other = (settings.exported_addresses(folder, servers) for folder in (tmp_path, tmp_path / "other"))
    own_database = f"sqlite:///{tmp_path}/mlflow.db"
    assert left(**own) == [None, None, own_database, None, None, None]
    for kept in ({}, other, {settings.EXPORTED: "{"}, {settings.EXPORTED: "[]"}):
        assert left(**kept) == [*servers.values(), None]
    changed = left(**own, PREFECT_API_URL="http://elsewhere/api")
    assert changed == ["http://elsewhere/api", "admin:a", own_database, None, None, None]
