"""Attacks on the machine by somebody who has MLflow's login and reaches its port, step by step."""

from __future__ import annotations

import http.server
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from grpo_local.login import login
from grpo_local.servers import mlflow_server, mlflow_service
from tests.ports import own_port

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own imports
_ASSISTANT = "/ajax-api/3.0/mlflow/assistant"
_KEYS_OF_OTHERS = (
    *("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING", "GRPO_SIGNING_KEY", "GRPO_ROLLOUT_KEY"),
    *("GRPO_SERVE_DATABASE", "GRPO_NOTIFY_URL", "OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GH_PAT"),
)
_COMMAND = "touch planted-by-the-assistant"


@dataclass(frozen=True)
class Attacker:
    """A client with the login, and a server of its own that answers as a language model would."""

    home: Path
    client: httpx.Client
    provider: str
    """Address of the language model, which asks for a shell command."""
    asked: list[str]
    """Requests that the language model has had."""

    def call(self, method: str, path: str, **request: Any) -> httpx.Response:
        return self.client.request(method, path, **request)

    def refusal(self, method: str, path: str, **request: Any) -> str:
        """The sentence of an answer 400."""
        answer = self.call(method, path, **request)
        assert answer.status_code == 400, f"{answer.status_code} {answer.text[:200]}"
        return str(answer.json()["message"])

    def experiment(self, name: str, location: str, field: str = "artifact_location") -> httpx.Response:
        return self.call("POST", "/api/2.0/mlflow/experiments/create", json={"name": name, field: location})

    def files(self) -> set[str]:
        """Files of the home that the server does not write by itself."""
        own = ("mlflow.", "services/")
        names = (str(path.relative_to(self.home)) for path in self.home.rglob("*") if path.is_file())
        return {name for name in names if not name.startswith(own)}


class _LanguageModel(http.server.BaseHTTPRequestHandler):
    """Answers each request with a call of the tool Bash."""

    asked: list[str]

    def do_POST(self) -> None:
        self.asked.append(self.path)
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        call = {"name": "Bash", "arguments": json.dumps({"command": _COMMAND})}
        delta: dict[str, Any] = {"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": call}]}
        if messages[-1]["role"] == "tool":
            delta = {"content": "done"}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for reason in (None, "stop" if "content" in delta else "tool_calls"):
            choice = {"index": 0, "delta": delta if reason is None else {}, "finish_reason": reason}
            self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(404)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    """MLflow's server as `grpo up` starts it, in a home that is also the one of its user."""
    home = tmp_path_factory.mktemp("attacked")
    asked: list[str] = []
    handler = type("LanguageModel", (_LanguageModel,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as model, pytest.MonkeyPatch.context() as patch:
        threading.Thread(target=model.serve_forever, daemon=True).start()
        patch.setenv("GRPO_MLFLOW_PORT", str(own_port()))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
        patch.setenv("HOME", str(home))
        for name in _KEYS_OF_OTHERS:
            patch.setenv(name, f"grpo:{'k' * 40}")
        patch.chdir(home)
        with mlflow_server(home) as url:
            user, _, password = login(home, "mlflow").partition(":")
            with httpx.Client(base_url=url, auth=(user, password), timeout=60) as client:
                provider = f"http://127.0.0.1:{model.server_address[1]}"
                yield Attacker(home=home, client=client, provider=provider, asked=asked)
        model.shutdown()


def test_the_server_has_no_key_but_its_own(attacker: Attacker):
    """Code that runs in it could run code through Prefect, or sign versions, with the others."""
    process = mlflow_service(attacker.home).process()
    assert process is not None
    environment = process.environ()
    assert environment["MLFLOW_TRACKING_PASSWORD"]
    assert {*_KEYS_OF_OTHERS} & {*environment} == set()


def test_a_large_query_is_not_parsed(attacker: Attacker):
    """5 MB of fields kept a thread for over a minute. The queries of MLflow's pages have a few kB."""
    for fields, status in ((10, 200), (20_000, 413)):
        query = f'{{ mlflowGetExperiment(input: {{experimentId: "0"}}) {{ experiment {{ {"name " * fields} }} }} }}'
        assert attacker.call("POST", "/graphql", json={"query": query}).status_code == status


def test_the_assistant_runs_no_command_for_a_provider_that_a_client_names(attacker: Attacker):
    """Each step of the attack gets 404, the provider gets no request, and nothing is written."""
    before = attacker.files()
    provider = {
        "selected": True,
        "model": "x",
        "base_url": attacker.provider,
        "permissions": {"full_access": True},
    }
    steps: list[tuple[str, str, dict[str, Any]]] = [
        ("PUT", f"{_ASSISTANT}/config", {"json": {"providers": {"ollama": provider}}}),
        ("POST", f"{_ASSISTANT}/message", {"json": {"message": "go", "context": {}}}),
        ("GET", f"{_ASSISTANT}/providers/ollama/models", {"params": {"base_url": attacker.provider}}),
        ("POST", f"{_ASSISTANT}/skills/install", {"json": {"type": "custom", "custom_path": str(attacker.home / "s")}}),
    ]
    answers = [attacker.call(method, path, **request) for method, path, request in steps]
    session = answers[1].json().get("session_id", "none")
    answers.append(attacker.call("GET", f"{_ASSISTANT}/sessions/{session}/stream"))
    assert [answer.status_code for answer in answers] == [404] * 5
    assert "is switched off on this server" in answers[0].json()["message"]
    assert attacker.asked == []
    assert attacker.files() == before


@pytest.mark.parametrize(
    "path",
    [
        "//ajax-api/3.0/mlflow/assistant/config",
        "/ajax-api/3.0/mlflow/%61ssistant/config",
        "/ajax-api/3.0/mlflow%2fassistant/config",
        "/ajax-api/3.0/mlflow/%2561ssistant/config",
        "/ajax-api/3.0/mlflow/assistant/config/",
        "/ajax-api/3.0/mlflow/assistant/./config",
        "/ajax-api/2.0/mlflow-artifacts/artifacts/..%2f..%2f..%2f3.0/mlflow/assistant/config",
        "/api/3.0/mlflow/assistant/config",
        "http://127.0.0.1/ajax-api/3.0/mlflow/assistant/config",
    ],
)
def test_no_encoding_of_the_path_reaches_the_assistant(attacker: Attacker, path: str):
    """As it is sent, byte by byte: a client of HTTP may normalize what it is given."""
    import socket

    host = attacker.client.base_url
    authorization = attacker.client.auth
    assert isinstance(authorization, httpx.BasicAuth)
    header = next(authorization.sync_auth_flow(httpx.Request("GET", host))).headers["authorization"]
    head = (
        f"GET {path} HTTP/1.1\r\nHost: {host.host}:{host.port}\r\nAuthorization: {header}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((host.host, host.port or 80), timeout=240) as connection:
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.split()[1] in (b"404", b"400"), answer[:300]
    assert b"providers" not in answer.partition(b"\r\n\r\n")[2]


def test_an_experiment_keeps_its_files_below_the_servers_root(attacker: Attacker):
    """A file of any name in the store of the home was the attack: the experiment is refused, and so is the upload."""
    place = (attacker.home / "artifacts" / "results").as_uri()
    message = attacker.refusal(
        "POST", "/api/2.0/mlflow/experiments/create", json={"name": "planted", "artifact_location": place}
    )
    assert message.startswith(f"artifact_location is '{place}', which is not below file:///")
    upload = attacker.call(
        "POST", "/ajax-api/2.0/mlflow/upload-artifact", params={"run_uuid": "1", "path": "x.json"}, content=b"{"
    )
    assert upload.status_code == 404
    assert not (attacker.home / "artifacts").exists()


@pytest.mark.parametrize(
    ("place", "field"),
    [
        ("{root}/../artifacts", "artifact_location"),
        ("{root}/%2e%2e/artifacts", "artifact_location"),
        ("{root}/%252e%252e/artifacts", "artifact_location"),
        ("{root}", "artifact_location"),
        ("{root}-other/x", "artifact_location"),
        ("{root}/a//b", "artifact_location"),
        ("{root}/x?y", "artifact_location"),
        ("/etc", "artifact_location"),
        ("etc", "artifact_location"),
        ("file://localhost/etc", "artifact_location"),
        ("file:///etc", "artifactLocation"),
        ("s3://bucket/folder", "artifact_location"),
        ("http://127.0.0.1:1/folder", "artifact_location"),
        ("mlflow-artifacts://evil.example/x", "artifact_location"),
        ("mlflow-artifacts:/../x", "artifact_location"),
    ],
)
def test_no_spelling_of_a_place_leaves_the_root(attacker: Attacker, place: str, field: str):
    """Dots, encodings, other hosts, other stores, and the other name that MLflow has for the field."""
    location = place.format(root=(attacker.home / "mlartifacts").as_uri())
    answer = attacker.experiment(f"refused {place} {field}".replace("/", "_"), location, field)
    assert answer.status_code == 400, answer.text
    assert "is not below" in answer.json()["message"]


def test_what_was_checked_is_what_mlflow_gets(attacker: Attacker):
    """A field twice, a document in a string, and other encodings: one reading, or none."""
    path, place = "/api/2.0/mlflow/experiments/create", "file:///etc"
    twice = f'{{"name": "twice", "artifact_location": "{place}", "artifact_location": "mlflow-artifacts:/twice"}}'
    made = attacker.call("POST", path, content=twice, headers={"content-type": "application/json"})
    assert made.status_code == 200, made.text
    known = attacker.call("GET", "/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": "twice"})
    assert known.json()["experiment"]["artifact_location"].startswith("mlflow-artifacts:/twice")
    document = json.dumps({"name": "in a string", "artifact_location": place})
    for body in (json.dumps(document).encode(), document.encode("utf-16"), b"[" * 100_000):
        assert "not a JSON object" in attacker.refusal(
            "POST", path, content=body, headers={"content-type": "application/json"}
        )


def test_places_below_the_root_are_taken(attacker: Attacker):
    """The server's own, one that it proxies, and none."""
    root = (attacker.home / "mlartifacts").as_uri()
    places = ("", "mlflow-artifacts:/a", f"{root}/b", f"{root}/with%20blank/c")
    answers = [attacker.experiment(f"taken {number}", place) for number, place in enumerate(places)]
    assert [answer.status_code for answer in answers] == [200] * 4, [answer.text for answer in answers]


def test_the_source_of_a_version_is_below_the_servers_root(attacker: Attacker):
    """The server reads its files for whoever asks: a bucket that its keys open is not for clients to name."""
    attacker.call("POST", "/api/2.0/mlflow/registered-models/create", json={"name": "desk"}).raise_for_status()
    path = "/api/2.0/mlflow/model-versions/create"
    for source in ("s3://bucket/other", "file:///etc", "https://evil.example/x", "mlflow-artifacts://evil.example/x"):
        assert "source is" in attacker.refusal("POST", path, json={"name": "desk", "source": source})


def test_a_trace_keeps_its_files_where_the_server_puts_them(attacker: Attacker):
    """By none of the three ways in which MLflow takes tags of a trace; other tags are taken."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    place = attacker.home.as_uri()
    experiment = attacker.experiment("traces", "").json()["experiment_id"]
    location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    info = {"trace_id": "tr-1", "trace_location": location, "request_time": "2026-01-01T00:00:00Z", "state": "OK"}
    spans = {"content-type": "application/x-protobuf", "x-mlflow-experiment-id": experiment}
    for tag in ("mlflow.artifactLocation", "mlflow.trace.archiveLocation"):
        trace = {"trace": {"trace_info": {**info, "tags": {tag: place}}}}
        assert tag in attacker.refusal("POST", "/api/3.0/mlflow/traces", json=trace)
        for version in ("2.0", "3.0"):
            tags = f"/api/{version}/mlflow/traces/tr-1/tags"
            assert tag in attacker.refusal("PATCH", tags, json={"key": tag, "value": place})
        request = ExportTraceServiceRequest()
        attribute = request.resource_spans.add().scope_spans.add().spans.add().attributes.add()
        attribute.key, attribute.value.string_value = f"mlflow.traceTag.{tag}", json.dumps(place)
        assert tag in attacker.refusal("POST", "/v1/traces", content=request.SerializeToString(), headers=spans)
    as_json = attacker.call("POST", "/v1/traces", json={}, headers={"x-mlflow-experiment-id": experiment})
    assert as_json.status_code == 415
    trace = {"trace": {"trace_info": {**info, "tags": {"of": "mine"}}}}
    assert attacker.call("POST", "/api/3.0/mlflow/traces", json=trace).status_code == 200


def test_a_body_is_bounded_before_it_is_read(attacker: Attacker):
    """64 MiB, and nothing that is larger once it is unpacked. A file that states its length may be larger."""
    path = "/api/2.0/mlflow/runs/log-batch"
    block = b" " * 2**20
    large = attacker.call(
        "POST", path, content=(block for _ in range(65)), headers={"content-type": "application/json"}
    )
    assert large.status_code == 413
    packed = attacker.call("POST", "/v1/traces", content=b"x", headers={"content-encoding": "gzip"})
    assert packed.status_code == 415
    file = "/api/2.0/mlflow-artifacts/artifacts/large"
    unstated = attacker.call("PUT", file, content=(block for _ in range(65)))
    assert unstated.status_code == 413
    assert not (attacker.home / "mlartifacts" / "large").exists()
    stored = attacker.call("PUT", file, content=block * 65)
    assert stored.status_code == 200
    assert (attacker.home / "mlartifacts" / "large").stat().st_size == 65 * 2**20


def test_a_file_that_does_not_fit_on_the_disk_is_refused_before_it_arrives(attacker: Attacker):
    """The head alone is sent. Had the server read on, it would wait for the body."""
    larger = shutil.disk_usage(attacker.home).free
    head = (
        "PUT /api/2.0/mlflow-artifacts/artifacts/huge HTTP/1.1\r\n"
        f"Host: {attacker.client.base_url.host}:{attacker.client.base_url.port}\r\n"
        f"{'Authorization: ' + attacker.client.get('/health').request.headers['authorization']}\r\n"
        f"Content-Length: {larger}\r\n\r\n"
    )
    with socket.create_connection((attacker.client.base_url.host, attacker.client.base_url.port or 0), 60) as sender:
        sender.sendall(head.encode())
        answer = b"".join(iter(lambda: sender.recv(65_536), b"")).decode()
    assert answer.startswith("HTTP/1.1 507")
    assert "stay free for the registry and the log" in answer
    assert not (attacker.home / "mlartifacts" / "huge").exists()
