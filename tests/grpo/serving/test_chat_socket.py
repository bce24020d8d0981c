from __future__ import annotations

import asyncio
import collections
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from grpo.config.serving import CallerLimits, ServiceSettings
from grpo.serving.access.callers import Caller
from grpo.serving.access.limits import Limiter
from grpo.serving.access.preparation import Preparation
from grpo.serving.event_hub import EventHub
from grpo.serving.routes.chat_socket import serve_chat_socket
from grpo.serving.routes.events import serve_event_socket
from grpo.serving.routes.frames import WAITING_CHARACTERS, WAITING_REQUESTS, WaitingFrames
from tests import waiting
from tests.grpo.serving.chat_servers import ChatServer, chat_server

until = partial(waiting.until, patience_s=240)
QUESTION = {"role": "user", "content": "Hello, where is my order 1234?"}
FRAME_BYTES = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(tmp_path_factory.mktemp("server"), frame_bytes=FRAME_BYTES) as running:
        yield running


def open_socket(server: ChatServer, name: str = "shop", path: str = "/v1/chat/stream") -> ClientConnection:
    return connect(f"{server.url.replace('http', 'ws')}{path}", additional_headers=server.headers(name))


def ask(socket: ClientConnection, **fields: Any) -> None:
    socket.send(json.dumps({"model": "clerk", "messages": [QUESTION], **fields}))


def replies(socket: ClientConnection) -> list[Any]:
    """Frames of one reply, up to `[DONE]` or an error."""
    frames: list[Any] = []
    while not frames or (frames[-1] != "[DONE]" and "error" not in frames[-1]):
        text = socket.recv(timeout=240)
        frames.append(text if text == "[DONE]" else json.loads(text))
    return frames


def content(frames: list[Any]) -> str:
    deltas = [choice["delta"] for frame in frames[:-1] for choice in frame["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_a_connection_answers_one_request_after_another(server: ChatServer):
    """The frames are the events of the stream, and join to the whole reply; the second request goes on by the id."""
    client = server.client()
    whole = client.chat.completions.create(model="clerk", messages=[QUESTION], seed=3)
    with client.chat.completions.create(model="clerk", messages=[QUESTION], seed=3, stream=True) as stream:
        events = [chunk.model_dump(exclude={"id", "created", "conversation_id"}) for chunk in stream]
    with open_socket(server) as socket:
        ask(socket, seed=3, stream_options={"include_usage": True})
        *chunks, usage, done = replies(socket)
        assert done == "[DONE]"
        assert usage["usage"] == whole.usage.model_dump(exclude_none=True)  # type: ignore[union-attr]
        assert content([*chunks, done]) == (whole.choices[0].message.content or "")
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-1:]] == [whole.choices[0].finish_reason]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"} == {e["object"] for e in events}
        name = chunks[0]["conversation_id"]
        ask(socket, seed=4, conversation_id=name, messages=[{"role": "user", "content": "And now?"}])
        again = replies(socket)
        assert again[0]["conversation_id"] == name
        assert again[-1] == "[DONE]"
    turns = [turn for turn in server.turns() if turn.conversation_id == name]
    assert [(turn.status, turn.parent is None) for turn in turns] == [("answered", True), ("answered", False)]


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[" * 5000, "invalid_json", None),
        ("7", "invalid_type", None),
        (b"{}", "invalid_json", None),
        ('{"model": "\\ud800"}', "invalid_text", None),
        ("{}", "missing_required_parameter", "model"),
        ('{"model": "clerk", "messages": [], "stream": false}', None, None),
        (json.dumps({"model": "other", "messages": [QUESTION]}), "model_not_found", "model"),
        (json.dumps({"model": "clerk", "messages": [QUESTION], "colour": 1}), "unknown_parameter", "colour"),
        (
            json.dumps({"model": "clerk", "messages": [QUESTION], "max_tokens": 10**15}),
            "context_length_exceeded",
            "max_tokens",
        ),
        (
            json.dumps({"model": "clerk", "messages": [QUESTION], "max_tokens": 1020}),
            "context_length_exceeded",
            "messages",
        ),
        (json.dumps({"model": "clerk", "messages": [QUESTION], "stop": ["a"] * 5}), "invalid_value", "stop"),
    ],
)
def test_a_frame_that_is_not_a_request_is_an_error_and_the_connection_stays(
    server: ChatServer, frame: str | bytes, code: str | None, param: str | None
):
    with open_socket(server) as socket:
        socket.send(frame)
        (error,) = replies(socket)
        assert 400 <= error["status"] < 500
        if code is not None:
            assert (error["error"]["code"], error["error"]["param"]) == (code, param)
        ask(socket, max_tokens=1)
        assert replies(socket)[-1] == "[DONE]"


def test_a_frame_above_the_bound_closes_the_connection(server: ChatServer):
    with open_socket(server) as socket:
        ask(socket, user="x" * FRAME_BYTES)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=240)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_requests_that_wait_are_bounded(server: ChatServer):
    """One is answered, some wait; of more the connection is closed, and the turn in progress aborted."""
    with open_socket(server) as socket:
        for _ in range(WAITING_REQUESTS + 2):
            ask(socket, max_tokens=400, temperature=2)
        with pytest.raises(ConnectionClosed) as closed:
            collections.deque(iter(partial(socket.recv, timeout=240), None), maxlen=0)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
    until("the end of all requests", lambda: server.service.requests == 0)


def test_frames_that_wait_are_bounded_over_all_sockets_of_a_key():
    """Half of the bound in each of two sockets fits, one more character does not; all are charged when they close."""
    counts, charged = collections.Counter[str](), list[int]()
    half = WAITING_CHARACTERS // 2
    one, two, other = (
        WaitingFrames(counts, key, lambda size, status: charged.append(size)) for key in ("shop", "shop", "other")
    )
    assert one.add(half)
    assert two.add(half)
    assert not two.add(1)
    assert other.add(2 * WAITING_CHARACTERS)
    one.end_first()
    assert one.add(half - 1)
    for frames in (one, two, other):
        frames.close()
    assert (charged, counts) == ([half - 1, half, 1, 2 * WAITING_CHARACTERS], {})


@pytest.mark.parametrize("later", [[9] * 4, [WAITING_CHARACTERS] * 2], ids=["short", "too long together"])
@pytest.mark.parametrize("path", ["chat", "events"])
def test_frames_that_arrive_after_a_reply_could_not_be_sent_are_charged(path: str, later: list[int]):
    """The client leaves after a refused frame of 9 characters and later ones: no reply, and no close, can be sent."""
    charged, failed = list[tuple[int, int]](), asyncio.Event()
    frames = [{"type": "websocket.receive", "text": "{" + " " * (size - 1)} for size in [9, *later]]
    incoming = [{"type": "websocket.connect"}, *frames]

    async def receive() -> Any:
        if len(incoming) == len(later):
            await failed.wait()
        return incoming.pop(0) if incoming else {"type": "websocket.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send" and "connected" not in message["text"]:
            failed.set()
            raise OSError

    caller = Caller(name="shop", key_hash="shop", scopes=frozenset({"chat"}), limits=CallerLimits())
    preparation = Preparation()
    service: Any = SimpleNamespace(
        settings=SimpleNamespace(socket_idle_s=240),
        waiting_frames=collections.Counter(),
        preparation=preparation,
        max_context=64,
        check_room=lambda: None,
        hub=EventHub(),
        versions=SimpleNamespace(loaded=[]),
        draining=False,
        ready=True,
    )
    socket = WebSocket({"type": "websocket"}, receive, send)
    socket.state.caller, socket.state.authorize = caller, lambda: caller
    socket.state.charge = lambda size, status: charged.append((size, status))
    if path == "chat":
        asyncio.run(serve_chat_socket(socket, service, Limiter(), lambda _: None))
    else:
        asyncio.run(serve_event_socket(socket, service, lambda _: None))
    preparation.close()
    assert charged == [(9, 400), *((size, 408) for size in later)]
    assert not service.waiting_frames


def test_a_client_that_goes_away_aborts_its_turn(server: ChatServer):
    """It leaves the batch, and is in the log as aborted."""
    socket = open_socket(server)
    ask(socket, max_tokens=400, temperature=2, seed=1, user="leaver")
    name = json.loads(socket.recv(timeout=240))["conversation_id"]
    socket.close()
    until("the turn in the log", lambda: any(turn.conversation_id == name for turn in server.turns()))
    (turn,) = [turn for turn in server.turns() if turn.conversation_id == name]
    assert turn.status in ("aborted", "answered")
    until("the end of its stream", lambda: server.service.streaming == 0)
    until("its leaving the batch", lambda: not any(version.running for version in server.service.versions.loaded))


def test_a_revoked_key_gets_no_further_events(server: ChatServer):
    """The connection is closed instead of the event."""
    with open_socket(server, "watcher", "/v1/events") as events:
        assert json.loads(events.recv(timeout=240))["type"] == "connected"
        server.keys.revoke("watcher")
        server.service.hub.publish("version.loaded", model="clerk/2")
        with pytest.raises(ConnectionClosed) as closed:
            events.recv(timeout=240)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "not authorized")


def test_pings_that_come_at_once_are_all_answered(server: ChatServer):
    """Two hundred, although eight requests may wait."""
    with open_socket(server, path="/v1/events") as events:
        for number in range(200):
            events.send(json.dumps({"type": "ping", "n": number}))
        assert json.loads(events.recv(timeout=240))["type"] == "connected"
        assert [json.loads(events.recv(timeout=240))["n"] for _ in range(200)] == list(range(200))


def test_a_revoked_key_ends_with_its_next_request(server: ChatServer):
    with open_socket(server, "leaver") as socket:
        ask(socket, max_tokens=1)
        assert replies(socket)[-1] == "[DONE]"
        server.keys.revoke("leaver")
        ask(socket, max_tokens=1)
        (error,) = replies(socket)
        assert (error["status"], error["error"]["code"]) == (401, "invalid_api_key")
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=240)


def test_limits_hold_and_their_wait_is_in_the_frame(server: ChatServer):
    from grpo.config.serving import CallerLimits

    secret = server.keys.create("slow", ("chat",), CallerLimits(requests_per_minute=1))
    headers = {"Authorization": f"Bearer {secret}"}
    with connect(f"{server.url.replace('http', 'ws')}/v1/chat/stream", additional_headers=headers) as socket:
        ask(socket, max_tokens=1)
        assert replies(socket)[-1] == "[DONE]"
        ask(socket, max_tokens=1)
        (error,) = replies(socket)
        assert error["status"] == 429
        assert 0 < error["retry_after_ms"] <= 60_000


def test_a_reply_ends_before_the_server_does(tmp_path: Path):
    """uvicorn alone closes the connection in the midst of a reply. The events have the end first."""
    with (
        chat_server(tmp_path) as server,
        open_socket(server, path="/v1/events") as events,
        open_socket(server) as socket,
    ):
        assert json.loads(events.recv(timeout=240))["type"] == "connected"
        ask(socket, max_tokens=300, temperature=2, seed=5)
        first = json.loads(socket.recv(timeout=240))
        server.server.handle_exit(15, None)
        assert json.loads(events.recv(timeout=240))["type"] == "server.draining"
        assert replies(socket)[-1] == "[DONE]"
        (turn,) = server.turns()
        assert (turn.conversation_id, turn.status) == (first["conversation_id"], "answered")


def test_the_handshake_needs_the_scope(server: ChatServer):
    server.client("reader", scopes=("feedback",))
    with pytest.raises(InvalidStatus) as refused:
        open_socket(server, "reader")
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/health"])
def test_a_websocket_at_the_path_of_a_request_is_refused_with_the_reason(server: ChatServer, path: str):
    """Also at a public path."""
    with pytest.raises(InvalidStatus) as refused:
        open_socket(server, path=path)
    response = refused.value.response
    assert (response.status_code, json.loads(response.body)["error"]["code"]) == (404, "unknown_url")
    assert f"{path} answers HTTP requests, and has no WebSocket" in response.body.decode()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_at_the_path_of_a_websocket_is_refused_with_the_reason(server: ChatServer, method: str):
    """426 names the protocol that the client has to use. Before its credential is known, there is no such answer."""
    response = httpx.request(method, f"{server.url}/v1/chat/stream", headers=server.headers("shop"))
    assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")
    assert response.json()["error"]["code"] == "websocket_needed"
    assert httpx.request(method, f"{server.url}/v1/chat/stream").status_code == 401


def test_the_websockets_of_a_key_are_bounded(server: ChatServer):
    """A key with one parallel request has 16, counted from the handshake; one that closes makes room for another."""
    secret = server.keys.create("many-sockets", ("chat",), CallerLimits(parallel=1))
    address, headers = f"{server.url.replace('http', 'ws')}/v1/chat/stream", {"Authorization": f"Bearer {secret}"}

    def opens() -> bool:
        try:
            sockets.append(stack.enter_context(connect(address, additional_headers=headers)))
        except InvalidStatus as error:
            refused.append((error.response.status_code, "retry-after" in error.response.headers))
            return False
        return True

    sockets: list[ClientConnection] = []
    refused: list[tuple[int, bool]] = []
    with ExitStack() as stack:
        assert [opens() for _ in range(18)] == [True] * 16 + [False] * 2
        assert refused == [(429, True)] * 2
        sockets[0].close()
        until("another one opens", opens)
        with open_socket(server, "another-key") as other:
            ask(other, max_tokens=1)
            assert replies(other)[-1] == "[DONE]"


def test_a_websocket_without_a_request_is_closed(tmp_path: Path):
    """With code 1001, after the reply to its last request."""
    with chat_server(tmp_path, service=ServiceSettings(socket_idle_s=2)) as server, open_socket(server) as socket:
        ask(socket, max_tokens=1)
        assert replies(socket)[-1] == "[DONE]"
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=240)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1001, "no request for 2 s")


def test_a_compressed_frame_counts_with_what_it_expands_to(server: ChatServer):
    """10 MB of one letter are 10 kB on the wire, less than the bound."""
    with open_socket(server) as socket:
        socket.send("x" * 10_000_000)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=240)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
