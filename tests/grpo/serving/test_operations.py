from __future__ import annotations

import hmac
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import httpx
import openai
import pytest

from grpo.serving.protocol.api_errors import APIError
from grpo.serving.routes.operations import Job, Number
from tests.grpo.serving.chat_servers import ChatServer, chat_server
from tests.grpo.serving.test_chat_socket import open_socket

QUESTION: Any = {"role": "user", "content": "Hello, where is my order 1234?"}


class Jobs:
    """Training runs in memory."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, Job] = {}
        self.started: list[tuple[str, dict[str, Number]]] = []

    async def start(self, deployment: str, overrides: Mapping[str, Number]) -> Job:
        self.started.append((deployment, dict(overrides)))
        job = Job(id=uuid4(), deployment=deployment, name="brave-fox", status="scheduled")
        self.jobs[job.id] = job
        return job

    async def job(self, id: UUID) -> Job:
        if id not in self.jobs:
            raise APIError(404, f"no training run {id}", code="job_not_found")
        return self.jobs[id]

    async def recent(self) -> Sequence[Job]:
        return tuple(self.jobs.values())

    async def cancel(self, id: UUID) -> Job:
        self.jobs[id] = (await self.job(id)).model_copy(update={"status": "cancelling"})
        return self.jobs[id]

    async def scale(self, pool: str, limit: int) -> int:
        return limit


@pytest.fixture(scope="module")
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Iterator[ChatServer]:
    with chat_server(tmp_path_factory.mktemp("server"), orchestrator=jobs) as running:
        yield running


def call(server: ChatServer, method: str, path: str, **options: Any) -> httpx.Response:
    return httpx.request(method, f"{server.url}{path}", headers=server.headers(), timeout=60, **options)


def test_a_training_run_is_started_by_its_deployment(server: ChatServer, jobs: Jobs):
    body = {"config": "train/quickstart", "overrides": {"training.iterations": 2}}
    started = call(server, "POST", "/v1/train", json=body)
    assert started.status_code == 202
    assert jobs.started[-1] == ("train/quickstart", {"training.iterations": 2})
    status = call(server, "GET", f"/v1/train/{started.json()['id']}")
    assert status.json() == started.json()
    unknown = call(server, "GET", f"/v1/train/{uuid4()}")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "job_not_found")
    assert call(server, "GET", "/v1/train/x").status_code == 400
    assert call(server, "POST", f"/v1/train/{started.json()['id']}/cancel").json()["status"] == "cancelling"


def test_training_runs_are_listed_newest_first(server: ChatServer, jobs: Jobs):
    first, second = (
        Job(id=uuid4(), deployment="", name=name, status="running", created=f"2026-01-0{day}T00:00:00Z")  # type: ignore[arg-type]
        for day, name in enumerate(("old", "new"), start=1)
    )
    jobs.jobs = {first.id: first, second.id: second}
    listed = call(server, "GET", "/v1/train").json()
    assert (listed["object"], [job["name"] for job in listed["data"]]) == ("list", ["new", "old"])


@pytest.mark.parametrize(
    "body",
    [
        {"config": "/etc/passwd"},
        {"config": "../train/x"},
        {"config": "train/a/b"},
        {"config": "data/configs/quickstart.yaml"},
        {"config": "train/x", "overrides": {"scenarios.path": "/etc/passwd"}},
        {"config": "train/x", "parameters": {}},
        {"config": "train/x", "overrides": {str(k): 1 for k in range(51)}},
    ],
)
def test_a_caller_names_neither_files_nor_code(server: ChatServer, jobs: Jobs, body: dict[str, Any]):
    before = len(jobs.started)
    assert call(server, "POST", "/v1/train", json=body).status_code == 400
    assert len(jobs.started) == before


def test_a_run_reports_its_start_its_iterations_and_its_end(server: ChatServer, jobs: Jobs):
    """Pings are answered meanwhile; a run that was over before is not reported."""
    over = Job(id=uuid4(), deployment="", name="old", status="completed", ended="2026-01-01T00:00:00Z")  # type: ignore[arg-type]
    jobs.jobs = {over.id: over}
    with open_socket(server, path="/v1/events") as socket:
        connected = json.loads(socket.recv(timeout=240))
        assert connected == {"type": "connected", "data": {"models": ["clerk/1"], "status": "ready"}}
        socket.send('{"type": "ping", "n": 7}')
        assert json.loads(socket.recv(timeout=240)) == {"type": "pong", "n": 7}
        socket.send("ping")
        assert json.loads(socket.recv(timeout=240))["error"]["code"] == "invalid_json"
        job = Job(id=uuid4(), deployment="train/quickstart", name="fox", status="running")
        seen = []
        for step in ({}, {"iterations": 1}, {"iterations": 2, "status": "completed"}):
            job = job.model_copy(update=step)
            jobs.jobs[job.id] = job
            seen.append(json.loads(socket.recv(timeout=240)))
        seen.append(json.loads(socket.recv(timeout=240)))
    types = [(event["type"], event["data"]["iterations"], event["data"]["id"]) for event in seen]
    name = str(job.id)
    assert types == [
        ("training.running", 0, name),
        ("training.iteration", 1, name),
        ("training.iteration", 2, name),
        ("training.completed", 2, name),
    ]
    assert [event["id"] for event in seen] == list(range(seen[0]["id"], seen[0]["id"] + 4))


def test_a_change_of_no_size_is_refused_with_the_sizes_there_are(server: ChatServer):
    error = call(server, "POST", "/v1/scale", json={}).json()["error"]
    assert error["message"] == "name max_requests, concurrency or work_pool"


def test_a_smaller_server_refuses_more(server: ChatServer):
    """One request at once is admitted; of eight turns the engine has at most two in its batch."""
    client = server.client()

    def run(_: int) -> int:
        try:
            client.chat.completions.create(model="clerk", messages=[QUESTION], max_tokens=60, temperature=2)
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    sizes = call(server, "POST", "/v1/scale", json={"max_requests": 8, "concurrency": 2}).json()
    assert sizes == {"max_requests": 8, "concurrency": 2}
    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            (stats,) = [version.stats() for version in server.service.versions.loaded]
            assert stats is not None
            most = max(most, stats.running)
            time.sleep(0.001)

    with ThreadPoolExecutor(9) as pool:
        watching = pool.submit(watch)
        assert set(pool.map(run, range(8))) == {200}
        done.set()
        watching.result()
    assert 1 <= most <= 2
    assert call(server, "POST", "/v1/scale", json={"max_requests": 1}).json()["max_requests"] == 1
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(run, range(8))) == {200, 503}
    both = {"max_requests": 256, "concurrency": 8, "work_pool": {"name": "cpu", "concurrency_limit": 3}}
    assert call(server, "POST", "/v1/scale", json=both).json() == both


@pytest.mark.parametrize(
    ("body", "param"),
    [({"concurrency": 9}, "concurrency"), ({"max_requests": 0}, "max_requests"), ({}, None), ({"size": 1}, "size")],
)
def test_a_size_that_cannot_be_had_is_refused(server: ChatServer, body: dict[str, Any], param: str | None):
    refused = call(server, "POST", "/v1/scale", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_the_conversations_of_a_user_are_erased(server: ChatServer):
    """From the log and from memory: the conversation cannot be continued. Another user's stays."""
    client = server.client()

    def begin(user: str) -> str:
        reply = client.chat.completions.create(model="clerk", messages=[QUESTION], user=user, max_tokens=2)
        return str(reply.model_extra["conversation_id"])  # type: ignore[index]

    name, other, single = begin("ann/a b"), begin("bob"), begin("cy")
    hashes = {turn.conversation_id: turn.user for turn in server.turns()}
    assert hashes[name] == hmac.digest((server.folder / "log/salt").read_bytes(), b"ann/a b", "sha256").hex()
    assert call(server, "DELETE", "/v1/users/ann%2Fa%20b").json()["erased"] == 1
    first = call(server, "DELETE", f"/v1/conversations/{single}").json()
    assert (first["erased"], first["status"]) == (1, "complete")
    assert call(server, "DELETE", f"/v1/conversations/{single}").json() == first
    unknown = call(server, "DELETE", "/v1/conversations/unknown").json()
    assert unknown == {"found": False, "erased": 0, "message": "nothing was found"}
    left = {turn.conversation_id for turn in server.turns()}
    assert other in left
    assert not {name, single} & left
    for gone in (name, single):
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(
                model="clerk", messages=[QUESTION], extra_body={"conversation_id": gone}, max_tokens=2
            )
    server.client("reader", scopes=("chat",))
    refused = httpx.delete(f"{server.url}/v1/users/bob", headers=server.headers("reader"), timeout=60)
    assert refused.status_code == 403


def test_without_training_runs_their_routes_say_so(tmp_path_factory: pytest.TempPathFactory):
    with chat_server(tmp_path_factory.mktemp("alone")) as server:
        answer = call(server, "POST", "/v1/train", json={"config": "train/quickstart"})
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
