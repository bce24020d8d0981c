"""Open ports, asked by those who have no business there: pages of other origins, other host names, no login."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prefect.server.api.server import create_app

from grpo_local.login import CLIENT, login
from grpo_local.managed_process import ManagedProcess
from grpo_local.servers import mlflow_service
from tests.e2e.browser import STRANGER, browser
from tests.e2e.served import basic
from tests.greeting import write_greeting
from tests.places import ROOT
from tests.ports import own_port
from tests.processes import family, listening

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

_ATTEMPTS = """
<script>
const post = (url, options) => fetch(url, {method: "POST", ...options}).then(answer => answer.type, () => "refused");
const read = (url, options) => fetch(url, options).then(answer => answer.text(), () => "refused");
const listen = url => new Promise(end => {
  const socket = new WebSocket(url, "prefect");
  socket.onopen = () => end("open");
  socket.onerror = () => end("refused");
});
const json = {"Content-Type": "application/json"}, login = {Authorization: "Basic " + btoa("LOGIN")};
(async () => {
  const body = JSON.stringify({});
  window.answers = [
    await post("API/deployments/DEPLOYMENT/create_flow_run", {body, headers: json}),
    await post("API/deployments/DEPLOYMENT/create_flow_run", {body, headers: {...json, ...login}}),
    await read("API/admin/settings"),
    await listen("API/events/in".replace("http:", "ws:")),
    await post("MLFLOW/api/2.0/mlflow/experiments/create", {body: '{"name": "planted"}', headers: json}),
    await read("MLFLOW/api/2.0/mlflow/experiments/get?experiment_id=0", {credentials: "include"}),
  ];
  await post("API/deployments/DEPLOYMENT/create_flow_run", {body, mode: "no-cors"});
  const blind = {mode: "no-cors", credentials: "include"};
  const shown = url => new Promise(end => {
    const picture = new Image();
    picture.onload = () => end(`${picture.width} pixels`);
    picture.onerror = () => end("nothing");
    picture.src = url;
  });
  window.pictures = [
    await shown("API/../ico/favicon.ico"),
    await shown("MLFLOW/static-files/favicon.ico?not-from-the-cache"),
  ];
  await read("API/admin/version", blind);
  await read("MLFLOW/ajax-api/2.0/mlflow/experiments/get?experiment_id=0", blind);
  await post("MLFLOW/ajax-api/2.0/mlflow/experiments/create", {body: '{"name": "planted"}', ...blind});
  window.done = true;
})();
</script>
"""


@dataclass(frozen=True)
class Ports:
    """Prefect's and MLflow's servers as `grpo up` starts them, a deployment, and a worker that would play it."""

    prefect: str
    mlflow: str
    deployment: str
    mlflow_login: tuple[str, str]
    home: Path
    """Home of MLflow and of the worker."""

    def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Ask Prefect with the login."""
        return httpx.request(method, self.prefect + path, auth=basic(os.environ[CLIENT]), timeout=60, **request)

    def runs(self) -> dict[str, str]:
        """Flow runs of the deployment, and their states."""
        where = {"deployments": {"id": {"any_": [self.deployment]}}}
        return {run["id"]: run["state_type"] for run in self.ask("POST", "/flow_runs/filter", json=where).json()}

    def experiments(self) -> list[str]:
        listed = f"{self.mlflow}/api/2.0/mlflow/experiments/search?max_results=99"
        answer = httpx.get(listed, auth=self.mlflow_login, timeout=60)
        return [one["name"] for one in answer.json()["experiments"]]

    def is_over(self, run: str) -> bool:
        return self.ask("GET", f"/flow_runs/{run}").json()["state_type"] in ("COMPLETED", "CRASHED", "FAILED")


@pytest.fixture(scope="module")
def ports(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """The server of the tests with the greeting deployed, MLflow, and a worker of the pool `cpu`."""
    from grpo_local.deployments import deploy
    from grpo_local.servers import mlflow_server
    from grpo_local.stack import worker_service

    folder = tmp_path_factory.mktemp("ports")
    deploy(write_greeting(folder), gpu_slots=1)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GRPO_MLFLOW_PORT", str(own_port()))
        environment.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        with mlflow_server(folder) as mlflow, worker_service(folder, "cpu", prefect_url=server, mlflow_url="").shared():
            found = Ports(
                prefect=server, mlflow=mlflow, deployment="", mlflow_login=basic(login(folder, "mlflow")), home=folder
            )
            deployment = found.ask("GET", "/deployments/name/greet/greeting").json()["id"]
            yield replace(found, deployment=deployment)


@contextmanager
def _served(page: str, *, name: str = STRANGER) -> Iterator[str]:
    """Another program's page on this machine, by the name of a stranger or, as `localhost`, of this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://{name}:{served.server_address[1]}/"
        served.shutdown()


def test_a_page_of_another_origin_gets_nothing_and_starts_nothing(ports: Ports, tmp_path: Path):
    """In a browser it may neither read nor listen, not even with the login; what it sends blindly has no effect."""
    before = ports.runs()
    page = _ATTEMPTS.replace("API", ports.prefect).replace("DEPLOYMENT", ports.deployment)
    page = page.replace("MLFLOW", ports.mlflow).replace("LOGIN", os.environ[CLIENT])
    with _served(page) as stranger, browser(tmp_path / "profile") as tab:
        tab.open(stranger)
        tab.wait("window.done")
        assert tab.evaluate("location.host").startswith(STRANGER)
        assert tab.evaluate("window.answers.join()") == ",".join(["refused"] * 6)
        assert {urlsplit(address).netloc for address in tab.asked} > {urlsplit(ports.prefect).netloc}
        assert tab.evaluate("window.pictures.join()") == "nothing,nothing"
    assert ports.runs() == before
    assert "planted" not in ports.experiments()


def test_a_name_that_leads_here_is_not_an_address_of_the_servers(ports: Ports, tmp_path: Path):
    """DNS rebinding: for the browser the servers are of the page's own origin, and they refuse the name."""
    with browser(tmp_path / "profile") as tab:
        tab.sign_in(ports.mlflow_login)
        for url in (f"{ports.prefect}/health", f"{ports.mlflow}/api/2.0/mlflow/experiments/get?experiment_id=0"):
            tab.open(url.replace("127.0.0.1", STRANGER))
            tab.wait(f"location.host.startsWith('{STRANGER}') && document.readyState === 'complete'")
            text = tab.evaluate("document.body.innerText")
            assert "not an address of the server" in text or "Invalid Host header" in text
            tab.open(url)
            tab.wait("location.host.startsWith('127.0.0.1') && document.readyState === 'complete'")
            assert tab.evaluate("document.body.innerText").startswith(("true", "{"))


def test_a_foreign_host_is_refused_although_the_login_is_right(ports: Ports):
    """Whatever it asks for, and nothing is started."""
    before = ports.runs()
    for host in ("evil.example", f"evil.example:{urlsplit(ports.prefect).port}", "127.0.0.1", ""):
        headers = {"Host": host}
        start = ports.ask("POST", f"/deployments/{ports.deployment}/create_flow_run", json={}, headers=headers)
        assert (start.status_code, ports.ask("GET", "/health", headers=headers).status_code) == (403, 403), host
    assert ports.runs() == before


def test_without_the_login_every_route_but_the_probes_refuses(ports: Ports):
    """All routes of Prefect's application, by every method; also with a wrong login. Their list is switched off."""
    assert httpx.get(f"{ports.prefect.removesuffix('/api')}/openapi.json", timeout=60).status_code == 404
    listed = create_app(ephemeral=False).openapi()["paths"]
    routes = [(method, path) for path, methods in listed.items() for method in methods]
    assert len(routes) > 150
    with httpx.Client(base_url=ports.prefect, timeout=60) as client:
        answers = {
            (method, path): client.request(
                method, path.removeprefix("/api").replace("{id}", ports.deployment), auth=wrong
            ).status_code
            for wrong in (None, ("grpo", "guessed"))
            for method, path in routes
        }
    answered = {path.removeprefix("/api") for (_, path), status in answers.items() if status != 401}
    assert answered <= {"/health", "/ready"}


def test_a_job_variable_that_would_execute_is_refused(ports: Ports, tmp_path: Path):
    """`command` and what amounts to one: no run is made."""
    before = ports.runs()
    path = f"/deployments/{ports.deployment}/create_flow_run"
    planted = tmp_path / "planted"
    for variables in (
        {"command": f"touch {planted}"},
        {"working_dir": str(tmp_path)},
        {"env": {"PYTHONPATH": str(tmp_path)}},
        {"env": {"LD_PRELOAD": "/tmp/library.so"}},
        {"env.PYTHONSTARTUP": str(planted)},
    ):
        answer = ports.ask("POST", path, json={"job_variables": variables})
        assert answer.status_code == 422, variables
    assert ports.runs() == before


def test_a_worker_does_not_execute_a_command_that_reached_it(ports: Ports, tmp_path: Path):
    """A run without a deployment, whose variables no schema is held against: it crashes, and its command is not run."""
    planted = tmp_path / "planted"
    flow = ports.ask("POST", "/flows/", json={"name": "planted"}).json()["id"]
    run = {"flow_id": flow, "work_pool_name": "cpu", "job_variables": {"command": f"touch {planted}"}}
    made = ports.ask("POST", "/flow_runs/", json={**run, "state": {"type": "SCHEDULED"}})
    assert made.status_code == 201
    _until_over(ports, made.json()["id"])
    assert not planted.exists()


def test_the_commands_of_prefect_work_after_one_line(ports: Ports):
    """As the manual prints it; without that line they are refused."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PREFECT_API_URL", CLIENT)}
    environment = {**kept, "PYTHONPATH": str(ROOT), "PREFECT_LOGGING_LEVEL": "INFO"}
    python = sys.executable
    line = f'eval "$({python} -m grpo_cli env)" && {python} -m prefect deployment run greet/greeting --watch'
    done = subprocess.run(
        ["bash", "-c", line], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Completed" in done.stdout
    refused = subprocess.run(
        [python, "-m", "prefect", "deployment", "run", "greet/greeting"],
        env={**environment, "PREFECT_API_URL": ports.prefect},
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert refused.returncode != 0
    assert "401" in refused.stdout + refused.stderr


def test_the_page_asks_for_the_password_and_works_with_it(ports: Ports, tmp_path: Path):
    """With the password of `grpo ui`, the page shows the deployment, and asks no other host for anything."""
    pages = ports.prefect.removesuffix("/api")
    with browser(tmp_path / "profile") as tab:
        tab.open(f"{pages}/deployments")
        tab.wait("document.querySelector('input[type=password]')")
        assert "greeting" not in tab.evaluate("document.body.innerText")
        tab.evaluate("document.querySelector('input[type=password]').focus()")
        tab.send("Input.insertText", text=os.environ[CLIENT])
        tab.evaluate("[...document.querySelectorAll('button')].find(one => one.innerText.includes('Login')).click()")
        tab.wait("document.body.innerText.includes('greeting')")
        strangers = {address for address in tab.asked if not address.startswith((pages, "data:", "blob:"))}
    assert not strangers


def test_every_open_port_is_listed_and_for_this_machine_only(ports: Ports, home: Path):
    """A port for each server and two for each worker: its health, and the channel to its runs, which wants a token."""
    worker = ManagedProcess(name="worker-cpu", home=ports.home, arguments=())
    services = (ManagedProcess(name="prefect", home=home, arguments=()), worker, mlflow_service(ports.home))
    leaders = [process for service in services if (process := service.process()) is not None]
    opened = {f"{ip}:{port}" for leader in leaders for ip, port in listening(family(leader))}
    known = {urlsplit(url).netloc for url in (ports.prefect, ports.mlflow, str(worker.address()))}
    assert known <= opened
    assert list(httpx.get(f"{worker.address()}/openapi.json", timeout=60).json()["paths"]) == ["/health"]
    channels = opened - known
    assert len(channels) <= 1
    for host, port in (channel.split(":") for channel in channels):
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port)), timeout=240) as caller:
            caller.sendall(b"no token of a run\n")
            assert caller.recv(1) == b""


def test_the_page_of_mlflow_asks_for_the_login_and_works_with_it(ports: Ports, tmp_path: Path):
    """Without it the browser gets nothing but the refusal; with it the owner's experiments, and no other host is asked.

    A browser sends a login that it has with every request to the server, whichever page makes it: a page of another
    program on this machine gets nothing all the same, and neither does a picture in it nor what it asks for blindly.
    """
    api, pages = f"{ports.mlflow}/api/2.0/mlflow", ports.prefect.removesuffix("/api")
    with httpx.Client(auth=ports.mlflow_login, timeout=60) as client:
        made = client.post(f"{api}/experiments/create", json={"name": "of the owner"}).raise_for_status()
        experiment = made.json()["experiment_id"]
        run = {"experiment_id": experiment, "run_name": "first run", "start_time": 1}
        client.post(f"{api}/runs/create", json=run).raise_for_status()
        client.post(f"{api}/registered-models/create", json={"name": "model of the owner"}).raise_for_status()
    with browser(tmp_path / "profile") as tab:
        tab.sign_in(None)
        tab.open(ports.mlflow)
        tab.wait("document.body.innerText.includes('UNAUTHENTICATED')")
        tab.sign_in(ports.mlflow_login)
        tab.open(f"{ports.mlflow}/?again#/experiments")
        tab.wait("document.body.innerText.includes('of the owner')")
        for page, text in {f"experiments/{experiment}/runs": "first run", "models": "of the owner"}.items():
            tab.open(f"{ports.mlflow}/?{page}#/{page}")
            tab.wait(f"document.body.innerText.includes('{text}')")
            assert "ENDPOINT_NOT_FOUND" not in tab.evaluate("document.body.innerText")
        assert tab.challenges == 2, "once in vain, once for all requests of the page"
        assert "collects usage data" not in tab.evaluate("document.body.innerText")
        assert not [address for address in tab.asked if not address.startswith((ports.mlflow, "data:", "blob:"))]
        page = _ATTEMPTS.replace("API", ports.prefect).replace("DEPLOYMENT", ports.deployment)
        with _served(page.replace("MLFLOW", ports.mlflow), name="127.0.0.1") as other:
            before = len(tab.answered)
            tab.open(other)
            tab.wait("window.done")
        assert tab.evaluate("window.answers.join()") == ",".join(["refused"] * 6)
        assert tab.evaluate("window.pictures.join()") == "nothing,nothing"
        answers = [(url, status) for url, status in tab.answered[before:] if url.startswith((ports.mlflow, pages))]
        assert {status for _, status in answers} == {403}, answers
    assert "planted" not in ports.experiments()


def _until_over(ports: Ports, run: str) -> None:
    deadline = time.monotonic() + 240
    while not ports.is_over(run):
        assert time.monotonic() < deadline, json.dumps(ports.ask("GET", f"/flow_runs/{run}").json()["state"])
        time.sleep(0.5)
