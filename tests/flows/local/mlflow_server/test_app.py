"""MLflow's server behind a login, asked by plain HTTP, by MLflow's client and by this project's commands."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from grpo.errors import ConfigError
from grpo_local.login import HOSTS, PASSWORD, USERNAME, login, login_file
from grpo_local.mlflow_server.app import LoginMiddleware
from grpo_local.servers import lend_mlflow_login, mlflow_server, mlflow_service
from tests.contents import files_with
from tests.file_limits import default_files
from tests.places import ROOT
from tests.ports import own_port
from tests.processes import each, family

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own imports
LOGIN = "grpo:a-long-password"


@dataclass(frozen=True)
class Tracking:
    """A running server, its home and its login."""

    home: Path
    url: str
    login: tuple[str, str]

    def environment(self, **variables: str) -> dict[str, str]:
        """Environment of a command of this home that is told the server's address, and no login."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))}
        return {**kept, "GRPO_HOME": str(self.home), "MLFLOW_TRACKING_URI": self.url, **variables}

    def grpo(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command with that environment."""
        command = [sys.executable, "-m", "grpo_cli", *arguments]
        return subprocess.run(
            command,
            env=self.environment(**variables),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """No login of another server in the environment."""
    for name in (USERNAME, PASSWORD):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracking]:
    """MLflow's server as `grpo up` and `grpo ui` start it, in a home of its own."""
    home = tmp_path_factory.mktemp("tracking")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GRPO_MLFLOW_PORT", str(own_port()))
        environment.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
        with ExitStack() as stack:
            with default_files():
                url = stack.enter_context(mlflow_server(home))
            user, _, password = login(home, "mlflow").partition(":")
            yield Tracking(home=home, url=url, login=(user, password))


# --- the middleware


async def _listen(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


@pytest.fixture
def client() -> TestClient:
    """A server behind a login that answers everything with 200."""
    methods = ["GET", "HEAD", "POST", "PUT", "OPTIONS"]
    routes = [
        Route("/{path:path}", lambda request: PlainTextResponse("hello"), methods=methods),
        WebSocketRoute("/events", _listen),
    ]
    return TestClient(LoginMiddleware(Starlette(routes=routes), LOGIN))


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (["Basic Z3JwbzphLWxvbmctcGFzc3dvcmQ="], 200),
        (["basic Z3JwbzphLWxvbmctcGFzc3dvcmQ="], 200),
        ([], 401),
        (["Basic"], 401),
        (["Basic "], 401),
        (["Z3JwbzphLWxvbmctcGFzc3dvcmQ="], 401),
        (["Bearer Z3JwbzphLWxvbmctcGFzc3dvcmQ="], 401),
        (["Basic Z3JwbzphLWxvbmctcGFzc3dvcmQ"], 401),
        (["Basic Z3JwbzphLWxvbmctcGFzc3dvcmQ=x"], 401),
        (["Basic Z3JwbzphLWxvbmctcGFzc3dvcmR4"], 401),
        (["Basic \xe9\xe9"], 401),
        (["Basic Z3JwbzphLWxvbmctcGFzc3dvcmQ=", "Basic x"], 401),
    ],
    ids=str,
)
def test_a_request_has_the_login_in_one_header(client: TestClient, given: list[str], status: int):
    """Base64 of grpo:a-long-password, whole; a browser is told to ask its user."""
    answer = client.get("/", headers=[("authorization", value.encode("latin-1")) for value in given])
    assert answer.status_code == status
    assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("HEAD", "/health", 200),
        ("GET", "/health?x=1", 200),
        ("POST", "/health", 401),
        ("OPTIONS", "/health", 401),
        ("GET", "/health/", 401),
        ("GET", "//health", 401),
        ("GET", "/Health", 401),
        ("GET", "/healthy", 401),
        ("GET", "/x/health", 401),
        ("GET", "/health/..%2fversion", 401),
        ("GET", "/version", 401),
    ],
)
def test_the_probe_alone_needs_no_login(client: TestClient, method: str, path: str, status: int):
    """No method, prefix or suffix widens it."""
    assert client.request(method, path).status_code == status


def test_a_websocket_without_the_login_is_refused(client: TestClient):
    """It is not opened."""
    with client.websocket_connect("/events", headers={"authorization": "Basic Z3JwbzphLWxvbmctcGFzc3dvcmQ="}):
        pass
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/events"):
        pass


# --- the server


def _routes() -> set[tuple[str, str]]:
    """Method and path of every route of MLflow's application, FastAPI's and Flask's, its parameters filled in."""
    from mlflow.server import app as flask_app
    from mlflow.server.fastapi_app import app

    found: list[tuple[str, str]] = []

    def walk(routes: list[object], prefix: str) -> None:
        for route in routes:
            if (router := getattr(route, "original_router", None)) is not None:
                walk(router.routes, prefix + getattr(route, "prefix", ""))
            for method in getattr(route, "methods", None) or ():
                found.append((method, prefix + route.path))  # type: ignore[attr-defined]

    walk(app.routes, "")
    assert len(found) > 50, "FastAPI's routes"
    found += [(method, rule.rule) for rule in flask_app.url_map.iter_rules() for method in rule.methods or ()]
    return {(method, re.sub(r"[<{][^>}]*[>}]", "1", path)) for method, path in found}


def test_without_the_login_every_route_but_the_probe_refuses(tracking: Tracking):
    """All that MLflow's application has, by every method; also with a wrong login and with the server's own user."""
    routes = _routes()
    assert len(routes) > 500
    with httpx.Client(base_url=tracking.url, timeout=60) as client:
        answers = {
            (method, path): client.request(method, path, auth=wrong).status_code
            for wrong in (None, ("grpo", "guessed"))
            for method, path in routes
        }
    assert {route for route, status in answers.items() if status != 401} == {("GET", "/health"), ("HEAD", "/health")}
    assert {answers["GET", "/health"], answers["HEAD", "/health"]} == {200}


def test_the_attack_on_the_registry_is_refused_at_its_first_steps(tracking: Tracking):
    """A module is uploaded, a version that names it is registered, and the champion's alias is moved: 401 each."""
    api = f"{tracking.url}/api/2.0"
    steps = [
        ("PUT", f"{api}/mlflow-artifacts/artifacts/models/planted/planted.py", {"content": b"import os"}),
        ("POST", f"{api}/mlflow/registered-models/create", {"json": {"name": "planted"}}),
        ("POST", f"{api}/mlflow/model-versions/create", {"json": {"name": "planted", "source": "models"}}),
        ("POST", f"{api}/mlflow/model-versions/set-tag", {"json": {"name": "planted", "version": "1", "key": "x"}}),
        ("POST", f"{api}/mlflow/registered-models/alias", {"json": {"name": "planted", "alias": "champion"}}),
    ]
    assert [httpx.request(method, url, timeout=60, **body).status_code for method, url, body in steps] == [401] * 5
    models = httpx.get(f"{api}/mlflow/registered-models/search", auth=tracking.login, timeout=60)
    assert "planted" not in models.text
    assert not list(tracking.home.rglob("planted.py"))


def test_the_body_of_a_probe_is_not_read(tracking: Tracking):
    """60 MiB that anyone announces: answered at once, and the connection is closed."""
    where = urlsplit(tracking.url)
    with socket.create_connection((where.hostname, where.port), timeout=240) as caller:
        caller.sendall(f"GET /health HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: 62914560\r\n\r\n".encode())
        answer = b"".join(iter(lambda: caller.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer.lower()


def test_silent_sockets_lock_nobody_out(tracking: Tracking):
    """1,100 of them, when the server was started with a limit of 1,024 open files."""
    address = ("127.0.0.1", int(tracking.url.rpartition(":")[2]))
    with ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(socket.create_connection(address, timeout=240))
        assert httpx.get(f"{tracking.url}/version", auth=tracking.login, timeout=60).status_code == 200


def test_a_large_artifact_goes_up_and_comes_down_slowly(tracking: Tracking):
    """32 MiB in parts, more than the buffers of the system take, over a connection that a probe goes before."""
    content = os.urandom(2**20) * 32
    path = "/api/2.0/mlflow-artifacts/artifacts/large/weights.bin"
    with httpx.Client(base_url=tracking.url, auth=tracking.login, timeout=120) as client:
        assert client.get("/health").status_code == 200
        parts = (content[start : start + 2**18] for start in range(0, len(content), 2**18))
        assert client.put(path, content=parts).status_code == 200
        with client.stream("GET", path) as answer:
            assert answer.status_code == 200
            assert b"".join(answer.iter_bytes(2**16)) == content


def test_mlflows_client_works_with_the_login(tracking: Tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An artifact, a version, an alias and a trace, there and back."""
    import mlflow
    from mlflow import MlflowClient

    for name, value in zip((USERNAME, PASSWORD), tracking.login, strict=True):
        monkeypatch.setenv(name, value)
    mlflow.set_tracking_uri(tracking.url)
    client = MlflowClient(tracking.url)
    run = client.create_run(client.create_experiment("round trip", artifact_location="mlflow-artifacts:/round"))
    client.log_text(run.info.run_id, "hello", "folder/text.txt")
    assert (
        Path(client.download_artifacts(run.info.run_id, "folder/text.txt", str(tmp_path))).read_text(encoding="utf-8")
        == "hello"
    )
    client.create_registered_model("round-trip")
    version = client.create_model_version(
        "round-trip", source=f"runs:/{run.info.run_id}/folder", run_id=run.info.run_id
    )
    client.set_registered_model_alias("round-trip", "champion", version.version)
    assert client.get_model_version_by_alias("round-trip", "champion").version == version.version
    with mlflow.start_span("turn"):
        pass
    mlflow.flush_trace_async_logging()
    assert client.get_trace(mlflow.get_last_active_trace_id()).info.state == "OK"


def test_a_logged_model_of_a_killed_registration_is_removed(
    tracking: Tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With its files, by the client that the next registration of the run uses."""
    import mlflow
    from mlflow import MlflowClient
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    from grpo.registry.logged_models import HOST, NAME, sweep_abandoned

    for name, value in zip((USERNAME, PASSWORD), tracking.login, strict=True):
        monkeypatch.setenv(name, value)
    mlflow.set_tracking_uri(tracking.url)
    client = MlflowClient(tracking.url)
    run = client.create_run(client.create_experiment("killed", artifact_location="mlflow-artifacts:/killed"))
    model = client.create_logged_model(
        run.info.experiment_id, name=NAME, source_run_id=run.info.run_id, tags={HOST: socket.gethostname()}
    )
    files = get_artifact_repository(model.artifact_location, tracking_uri=tracking.url)
    (part := tmp_path / "model.safetensors").write_bytes(b"weights")
    files.log_artifact(str(part))
    assert [file.path for file in files.list_artifacts()] == ["model.safetensors"]
    sweep_abandoned(client, run.info.run_id)
    assert not client.search_logged_models([run.info.experiment_id])
    assert not files.list_artifacts()


def test_files_of_the_server_are_readable_by_the_owner_alone(tracking: Tracking):
    """Its login, its database, and the folder of its artifacts, through which others do not get to what is in it."""
    run = {"name": "files", "artifact_location": "mlflow-artifacts:/files"}
    httpx.post(
        f"{tracking.url}/api/2.0/mlflow/experiments/create", json=run, auth=tracking.login, timeout=60
    ).raise_for_status()
    url = f"{tracking.url}/api/2.0/mlflow-artifacts/artifacts/files/conversation.json"
    httpx.put(url, content=b"{}", auth=tracking.login, timeout=60).raise_for_status()
    artifacts = tracking.home / "mlartifacts"
    files = (login_file(tracking.home, "mlflow"), tracking.home / "mlflow.db", artifacts, artifacts / "files")
    assert {str(path): oct(path.stat().st_mode & 0o077) for path in files} == {str(path): "0o0" for path in files}
    assert (artifacts / "files" / "conversation.json").stat().st_mode & 0o077 == 0


def test_the_password_is_in_no_argument_and_no_log(tracking: Tracking):
    """Other users of the machine see arguments of processes."""
    process = mlflow_service(tracking.home).process()
    assert process is not None
    commands = [" ".join(command) for command in each(family(process), psutil.Process.cmdline)]
    assert commands
    assert not [command for command in commands if tracking.login[1] in command]
    assert files_with(tracking.login[1].encode(), tracking.home) == [login_file(tracking.home, "mlflow")]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({HOSTS: "127.0.0.1:5000"}, f"set {USERNAME} and {PASSWORD}"),
        ({HOSTS: "127.0.0.1:5000", USERNAME: "grpo"}, "Set both or neither"),
        ({HOSTS: "127.0.0.1:5000", PASSWORD: "a-long-password"}, "Set both or neither"),
        ({HOSTS: "127.0.0.1:5000", USERNAME: "a:b", PASSWORD: "a-long-password"}, "without a colon"),
        ({HOSTS: "127.0.0.1:5000", USERNAME: "grpo", PASSWORD: "short"}, "has only 10 characters"),
        ({USERNAME: "grpo", PASSWORD: "a-long-password"}, HOSTS),
        ({HOSTS: "*", USERNAME: "grpo", PASSWORD: "a-long-password"}, HOSTS),
        ({HOSTS: "10.*", USERNAME: "grpo", PASSWORD: "a-long-password"}, HOSTS),
    ],
    ids=["no login", "no password", "no user", "colon", "short", "no addresses", "every address", "a network"],
)
def test_a_server_that_would_answer_anyone_is_not_started(variables: dict[str, str], message: str):
    """The error names the variable, as in a container without its secret."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    done = subprocess.run(
        [sys.executable, "-c", "from grpo_local.mlflow_server.app import application; application()"],
        env={**kept, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert message in done.stderr.strip().rpartition("\n")[2]


# --- clients of this project


def test_a_command_that_names_the_server_of_its_home_has_the_login(tracking: Tracking):
    """The address is enough: the command reads the login from the file of the home."""
    done = tracking.grpo("models")
    assert done.returncode == 0, done.stderr


def test_a_wrong_login_is_one_sentence_with_its_remedy(tracking: Tracking):
    """By the check before a command, which doctor shows as well."""
    done = tracking.grpo("models", **{USERNAME: "grpo", PASSWORD: "another-password"})
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"{tracking.url} refuses the login. Set {USERNAME} and {PASSWORD}" in done.stderr
    shown = tracking.grpo("doctor", "--json", **{USERNAME: "grpo", PASSWORD: "another-password"})
    (check,) = (
        one for one in json.loads(shown.stdout)["checks"] if (one["area"], one["name"]) == ("servers", "mlflow")
    )
    assert check["state"] == "problem"
    assert USERNAME in check["remedy"]
    assert "another-password" not in done.stderr + shown.stdout


def test_the_server_of_another_home_is_not_given_this_homes_login(
    tracking: Tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nor a name that may lead to another program, as localhost does where IPv6 is asked first."""
    login(tmp_path, "mlflow")
    for home, address in (
        (tmp_path, tracking.url),
        (tracking.home, "https://mlflow.example.com"),
        (tracking.home, f"http://127.0.0.1:{own_port()}"),
        (tracking.home, tracking.url.replace("127.0.0.1", "localhost")),
        (tracking.home, tracking.url.replace("http:", "https:")),
        (tracking.home, f"{tracking.url}/proxy"),
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        lend_mlflow_login(home)
        assert not {USERNAME, PASSWORD} & os.environ.keys(), address
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
    lend_mlflow_login(tracking.home)
    assert (os.environ.pop(USERNAME), os.environ.pop(PASSWORD)) == tracking.login


def test_a_login_of_the_user_is_kept(tracking: Tracking, monkeypatch: pytest.MonkeyPatch):
    """Also a token, which MLflow's clients send instead."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "of-the-user")
    lend_mlflow_login(tracking.home)
    assert USERNAME not in os.environ
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    monkeypatch.setenv(USERNAME, "me")
    monkeypatch.setenv(PASSWORD, "my-own-password")
    lend_mlflow_login(tracking.home)
    assert os.environ[USERNAME] == "me"


def test_a_program_that_took_the_port_of_a_dead_server_gets_no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its address is still in the record of the home, and it says that it is healthy."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{other.server_address[1]}"
        login(tmp_path, "mlflow")
        dead = {"pid": 2**22 + 1, "identity": "gone", "url": address}
        (tmp_path / "services" / "mlflow.json").write_text(json.dumps(dead))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        lend_mlflow_login(tmp_path)
        other.shutdown()
    assert USERNAME not in os.environ


def test_a_server_that_was_started_with_another_login_is_refused_in_one_sentence(
    tracking: Tracking, monkeypatch: pytest.MonkeyPatch
):
    """Two commands of one home, one of which has a login of the user's own."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tracking.home}/mlflow.db")
    monkeypatch.setenv(USERNAME, "me")
    monkeypatch.setenv(PASSWORD, "my-own-password")
    message = rf"refuses the login in {USERNAME} and {PASSWORD}, because it was started with another login"
    with pytest.raises(ConfigError, match=message) as caught, mlflow_server(tracking.home):
        pass
    assert "my-own-password" not in str(caught.value)
    monkeypatch.delenv(USERNAME)
    monkeypatch.delenv(PASSWORD)
    with mlflow_server(tracking.home) as url:
        assert url == tracking.url
        assert (os.environ[USERNAME], os.environ[PASSWORD]) == tracking.login
    assert USERNAME not in os.environ


def test_a_configured_server_gets_no_login_of_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`grpo up` with MLFLOW_TRACKING_URI of another machine: its workers have the user's login or none."""
    login(tmp_path, "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.com")
    with mlflow_server(tmp_path) as url:
        assert url == "https://mlflow.example.com"
        assert not {USERNAME, PASSWORD} & os.environ.keys()
