"""Budget of refused work, by a clock of our own and over HTTP and WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from starlette.testclient import TestClient
from starlette.types import Receive, Send
from starlette.types import Scope as Connection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from grpo.config.serving import CallerLimits
from grpo.serving.access.callers import Caller, Scope
from grpo.serving.access.guard import BODIES, Guard
from grpo.serving.access.limits import Limiter, LimitExceeded
from grpo.serving.access.preparation import Preparation
from grpo.serving.access.refused_work import LEAST_BYTES, PENALTY_S, STATUSES, RefusedWork
from grpo.serving.access.usage import LocalUsage
from grpo.serving.protocol.api_errors import APIError
from tests.grpo.serving.chat_servers import ChatServer, chat_server
from tests.waiting import until

BUDGET = 64 * 1024


def caller(name: str = "shop", *, scopes: frozenset[Scope] = frozenset({"chat"}), **limits: int) -> Caller:
    return Caller(name=name, key_hash=name, scopes=scopes, limits=CallerLimits(**limits))


def test_a_key_pays_for_refused_bytes_until_they_are_a_minute_old():
    """10,000 bytes at t=0 and at t=30 fill a budget of 20,000; at t=61 the first ones are gone."""
    now = 0.0
    work = RefusedWork(Limiter(), bytes_per_minute=20_000, clock=lambda: now)
    work.charge(caller(), 10_000)
    now = 30.0
    work.check(caller())
    work.charge(caller(), 10_000)
    with pytest.raises(APIError) as error:
        work.check(caller())
    assert (error.value.status, error.value.retry_after_s) == (429, pytest.approx(30))
    work.check(caller("other"))
    now = 61.0
    work.check(caller())
    assert (work.requests, work.bytes, work.exceeded) == (2, 20_000, 1)


def test_refused_requests_of_one_second_are_kept_as_one_entry():
    """So that memory does not grow with their number: a thousand within a second, and one in the next."""
    now = 0.5
    work = RefusedWork(Limiter(), bytes_per_minute=2**30, clock=lambda: now)
    for _ in range(1000):
        work.charge(caller(), LEAST_BYTES)
    now = 1.5
    work.charge(caller(), LEAST_BYTES)
    assert list(work._windows["shop"]) == [(61.0, 1000 * LEAST_BYTES), (62.0, LEAST_BYTES)]


def test_a_short_refused_request_counts_as_4096_bytes():
    work = RefusedWork(Limiter(), bytes_per_minute=3 * LEAST_BYTES, clock=lambda: 0.0)
    for _ in range(3):
        work.check(caller())
        work.charge(caller(), 1)
    with pytest.raises(APIError, match="12288 bytes within a minute"):
        work.check(caller())


def test_a_key_pays_for_the_time_of_a_core_where_that_is_more_than_the_bytes():
    """With a budget of 100,000 bytes 0.25 s count as 25,000 bytes, and 1,000 bytes that took 0.75 s as 75,000."""
    work = RefusedWork(Limiter(), bytes_per_minute=100_000, clock=lambda: 0.0)
    work.charge(caller(), 10_000, cpu_s=0.25)
    work.check(caller())
    work.charge(caller(), 1_000, cpu_s=0.75)
    with pytest.raises(APIError, match="100000 bytes within a minute"):
        work.check(caller())
    assert work.bytes == 11_000


def test_the_guard_charges_the_time_of_the_preparation():
    """A route whose refusals take 0.6 s of a core answers two of them, whose bodies have 2 bytes."""
    preparation = Preparation()

    async def answer(connection: Connection, receive: Receive, send: Send) -> None:
        await preparation.run("shop", 2, _busy)
        await Response(status_code=400)(connection, receive, send)

    guard = Guard(answer, lambda _: caller(scopes=frozenset({"admin"})), preparation=preparation)
    client = TestClient(guard, headers={"Authorization": "Bearer x"})
    assert [client.post("/", content=b"{}").status_code for _ in range(3)] == [400, 400, 429]
    preparation.close()


def _busy() -> None:
    end = time.thread_time() + 0.6
    while time.thread_time() < end:
        pass


def test_a_refused_request_takes_from_the_limits_of_its_key():
    """One of two requests, and 4,000 characters are 1,000 of 1,200 tokens."""
    now = 0.0
    limiter = Limiter(LocalUsage(clock=lambda: now))
    work = RefusedWork(limiter, clock=lambda: now)
    limited = caller(requests_per_minute=2, tokens_per_minute=1200)
    work.charge(limited, 4000)
    headers = asyncio.run(limiter.headers(limited))
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert headers["x-ratelimit-remaining-tokens"] == "200"
    work.charge(limited, 4)
    with pytest.raises(LimitExceeded, match="2 requests a minute"):
        asyncio.run(limiter.check(limited))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_refusal_for_now_is_charged_as_bytes_alone(status: int):
    """Where a body was read: 9,000 of 8,192 bytes; the limits of its key are those of admitted requests."""
    limiter = Limiter(LocalUsage(clock=lambda: 0.0))
    work, limited = RefusedWork(limiter, bytes_per_minute=8192, clock=lambda: 0.0), caller(requests_per_minute=2)
    work.charge(limited, 0, status=status)
    assert work.requests == 0
    work.charge(limited, 9000, status=status)
    with pytest.raises(APIError, match="9000 bytes within a minute"):
        work.check(limited)
    assert asyncio.run(limiter.headers(limited))["x-ratelimit-remaining-requests"] == "2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(tmp_path_factory.mktemp("server"), refused_bytes=BUDGET) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/chat/completions", b"{" + b" " * 40_000, 400),
        ("/v1/chat/completions", json.dumps({"model": "clerk", "messages": []}).encode() + b" " * 40_000, 400),
        ("/v1/chat/completions", json.dumps({"model": "none", "messages": [{}]}).encode() + b" " * 40_000, 400),
        ("/v1/completions", json.dumps({"model": "none", "prompt": "x"}).encode() + b" " * 40_000, 404),
        ("/v1/completions", json.dumps({"model": "clerk", "prompt": [7] * 20_000}).encode(), 400),
        ("/v1/feedback", b'{"stars": 5}' + b" " * 40_000, 400),
        ("/v1/feedback", b" " * 300_000, 413),
        ("/v1/train", b"[]" + b" " * 40_000, 400),
    ],
)
def test_refused_requests_of_every_route_use_the_budget_up(server: ChatServer, path: str, content: bytes, status: int):
    """Two of 40,000 bytes exceed 65,536: the third gets 429 and is not read; other keys are answered."""
    headers = server.headers(f"hostile-{hashlib.sha256(path.encode() + content).hexdigest()[:12]}")
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        assert client.post(path, content=content).status_code == status
        if len(content) < BUDGET:
            assert client.post(path, content=content).status_code == status
        refused = client.post(path, content=content)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < float(refused.headers["retry-after"]) <= 61
        assert refused.headers["connection"] == "close"
    other = httpx.post(f"{server.url}/v1/feedback", content=b"{}", headers=server.headers("honest"), timeout=60)
    assert other.status_code == 400


@pytest.mark.parametrize("path", ["/v1/chat/stream", "/v1/events"])
def test_refused_frames_use_the_budget_up(server: ChatServer, path: str):
    """The frame after the budget gets 429, its connection is closed, and a handshake gets 429."""
    address, headers = f"{server.url.replace('http', 'ws')}{path}", server.headers(f"frames-{path[4:8]}")
    with connect(address, additional_headers=headers) as chat:
        if path == "/v1/events":
            assert json.loads(chat.recv(timeout=240))["type"] == "connected"
        for status in (400, 400, 429):
            chat.send("{" + " " * 40_000)
            assert json.loads(chat.recv(timeout=240))["status"] == status
        with pytest.raises(ConnectionClosed) as closed:
            chat.recv(timeout=240)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013
    with pytest.raises(InvalidStatus) as refused:
        connect(address, additional_headers=headers).__enter__()
    assert refused.value.response.status_code == 429


def test_a_body_that_its_client_leaves_is_charged(server: ChatServer):
    """50,000 bytes of a body that declares more, and the connection is closed."""
    before = _values(server)["grpo_refused_bytes_total"]
    head = f"POST /v1/feedback HTTP/1.1\r\nhost: x\r\nauthorization: {server.headers('leaves')['Authorization']}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + b"content-length: 90000\r\n\r\n" + b"x" * 50_000)
    charged = before + 50_000
    until("it is charged", lambda: _values(server)["grpo_refused_bytes_total"] >= charged, patience_s=240)


def test_requests_that_are_refused_by_a_limit_after_their_text_was_read_use_the_budget_up(server: ChatServer):
    """Each of 30,000 bytes takes more tokens than a minute has; the fourth is refused by its head."""
    secret = server.keys.create("greedy", ["chat"], CallerLimits(tokens_per_minute=5))
    body = {"model": "clerk", "messages": [{"role": "user", "content": "word " * 50}], "max_tokens": 6}
    content = json.dumps(body).encode() + b" " * 30_000
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as client:
        answers = [client.post("/v1/chat/completions", content=content) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [429] * 4
    budget = ["refused requests of this key" in answer.json()["error"]["message"] for answer in answers]
    assert budget == [False, False, False, True]


def test_a_frame_above_the_bound_counts_as_a_refused_request(server: ChatServer):
    before = _values(server)["grpo_refused_requests_total"]
    address, headers = f"{server.url.replace('http', 'ws')}/v1/events", server.headers("large-frames")
    with connect(address, additional_headers=headers) as chat:
        chat.recv(timeout=240)
        chat.send("x" * 10_000_000)
        with pytest.raises(ConnectionClosed):
            chat.recv(timeout=240)
    charged = before + 1
    until("it is charged", lambda: _values(server)["grpo_refused_requests_total"] >= charged, patience_s=240)


@pytest.mark.parametrize("path", ["/v1/chat/stream", "/v1/events"])
def test_frames_whose_client_goes_away_before_an_answer_are_charged(server: ChatServer, path: str):
    """Five of 12,000 characters, sent and left: those that were answered as refused, and those that were not."""
    before = _values(server)["grpo_refused_bytes_total"]
    address, headers = f"{server.url.replace('http', 'ws')}{path}", server.headers(f"leaves-{path[4:8]}")
    with connect(address, additional_headers=headers, close_timeout=240) as chat:  # an aborted one loses what is unread
        for _ in range(5):
            chat.send("{" + " " * 12_000)
    charged = before + 60_000
    until("they are charged", lambda: _values(server)["grpo_refused_bytes_total"] >= charged, patience_s=240)
    assert server.service.waiting_frames == {}


def test_bodies_of_requests_that_only_read_use_the_budget_up_as_well(server: ChatServer):
    """A GET may have a body. Of three with 300,000 bytes, the guard reads and refuses the first one."""
    with httpx.Client(base_url=server.url, headers=server.headers("reader"), timeout=60) as client:
        statuses = [client.request("GET", "/v1/models", content=b" " * 300_000).status_code for _ in range(3)]
        assert statuses == [413, 429, 429]
        assert client.get("/v1/models").status_code == 200


def test_each_status_that_a_route_refuses_with_is_charged():
    """401 and 431 are answered before the caller is known."""
    sources = [path.read_text() for path in Path("grpo/serving").rglob("*.py")]
    statuses = {int(status) for source in sources for status in re.findall(r"APIError\(\s*(\d{3})", source)}
    assert statuses - STATUSES == {401, 431}


def _values(server: ChatServer) -> dict[str, float]:
    values: dict[str, float] = httpx.get(
        f"{server.url}/v1/metrics", headers=server.headers("scraper"), timeout=60
    ).json()
    return values


@pytest.fixture
def penalty_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """A penalty within which a busy machine answers at once what has none."""
    monkeypatch.setattr("grpo.serving.access.refused_work.PENALTY_S", seconds := 2.5)
    return seconds


def test_refusals_of_a_used_up_key_wait_and_the_more_there_are_the_longer(server: ChatServer, penalty_s: float):
    """So that they take nothing from others, who are answered at once."""
    key = server.client("at-full-speed").api_key
    headers = {"Authorization": f"Bearer {key}"}

    async def refused(client: httpx.AsyncClient) -> float:
        started = time.monotonic()
        answer = await client.post(f"{server.url}/v1/chat/completions", json={}, headers=headers)
        assert answer.status_code == 429
        return time.monotonic() - started

    async def attack() -> list[float]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            large = b"{" + b" " * BUDGET
            await client.post(f"{server.url}/v1/chat/completions", content=large, headers=headers)
            return await asyncio.gather(*(refused(client) for _ in range(64)))

    waits = sorted(asyncio.run(attack()))
    assert waits[0] >= penalty_s - 0.01
    assert waits[-1] >= 2 * penalty_s  # 64 wait, and sixteen do for one penalty; if all come at once, the last for four


def _waits(server: ChatServer, count: int, method: str, path: str, **options: Any) -> list[float]:
    """Time of each of these requests, which are sent at once, shortest first."""

    async def send(client: httpx.AsyncClient) -> float:
        started = time.monotonic()
        await client.request(method, f"{server.url}{path}", **options)
        return time.monotonic() - started

    async def attack() -> list[float]:
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=200)) as client:
            return sorted(await asyncio.gather(*(send(client) for _ in range(count))))

    return asyncio.run(attack())


def test_an_address_with_many_requests_without_a_key_waits_and_one_with_a_few_does_not(
    server: ChatServer, penalty_s: float
):
    """Twenty in a second are answered at once; of a hundred the last waits for seconds; keys and probes do not."""
    assert _waits(server, 10, "POST", "/v1/chat/completions", json={})[-1] < penalty_s
    time.sleep(1.1)
    waits = _waits(server, 100, "GET", "/v1/models", headers={"Authorization": "Bearer wrong"})
    assert waits[0] < penalty_s
    assert waits[-1] >= penalty_s
    assert _waits(server, 50, "GET", "/health")[-1] < penalty_s
    assert server.client("honest").models.list().data


def test_a_body_that_nobody_reads_is_answered_late(server: ChatServer):
    """A probe has none; who sends one to `/health` and connects again after each answer would be a flood."""
    assert _waits(server, 2, "POST", "/health", json={})[0] >= PENALTY_S - 0.01


def test_bodies_that_arrive_at_once_are_refused_late(server: ChatServer):
    """The 65th body of a key that is on its way at once; the 64 before it never arrive."""
    key = server.client("many-bodies").api_key
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 5\r\n\r\n"
    address = (httpx.URL(server.url).host, httpx.URL(server.url).port)
    with contextlib.ExitStack() as stack:
        for _ in range(BODIES):
            stack.enter_context(socket.create_connection(address)).sendall(head.encode())
        until("all of them are read", lambda: server.book.states()["reading"] >= BODIES, patience_s=240)
        started = time.monotonic()
        last = stack.enter_context(socket.create_connection(address))
        last.sendall(head.encode())
        answer = b""
        while chunk := last.recv(65536):  # up to the end of the connection
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"connection: close" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "rate_limit_exceeded"
        assert time.monotonic() - started >= PENALTY_S - 0.01
