"""Requests that cannot fit are refused by their lengths, and what fits is read off the event loop."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from grpo.config.serving import CallerLimits, ServiceSettings
from grpo.messages import Tool
from grpo.serving.engine.engine import ProcessPolicy
from grpo.serving.engine.served_model import ServedModel
from grpo.serving.requests.digests import DigestedMessages
from tests.grpo.serving.chat_servers import ChatServer, chat_server, clerk
from tests.waiting import until

LONGEST = 1024 * 45
"""Characters that the clerk's context can hold: 1,024 tokens, of which the longest has 45 characters."""


@dataclass(slots=True)
class Reading:
    """Threads that have rendered or tokenized."""

    threads: set[str] = field(default_factory=set)
    gate: threading.Event = field(default_factory=threading.Event)

    def note(self) -> None:
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(240)


def noting(served: ServedModel, reading: Reading) -> ServedModel:
    """The version with a tokenizer that notes each call, which is the seam to the libraries below."""
    policy = served.policy
    assert isinstance(policy, ProcessPolicy)

    class Noting(type(policy.tokenizer)):  # type: ignore[misc]
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            reading.note()
            return super().__call__(*arguments, **named)

        def apply_chat_template(self, *arguments: Any, **named: Any) -> Any:
            reading.note()
            return super().apply_chat_template(*arguments, **named)

    policy.tokenizer.__class__ = Noting
    return served


@pytest.fixture(scope="module")
def reading() -> Reading:
    return Reading()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, reading: Reading) -> Iterator[ChatServer]:
    reading.gate.set()
    folder = tmp_path_factory.mktemp("server")
    with chat_server(folder, lambda current: None if current else noting(clerk(), reading)) as running:
        running.client()
        yield running


def chat_of(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "clerk", "messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields}


def tool_of(description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": description, "parameters": {}}}


def post(server: ChatServer, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, headers=server.headers(), timeout=60)


TOO_LONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "text": ("/v1/chat/completions", chat_of("x" * (LONGEST + 1)), "46080 can fit"),
    "parts": (
        "/v1/chat/completions",
        {"model": "clerk", "messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 30_000}] * 2}]},
        "46080 can fit",
    ),
    "messages": (
        "/v1/chat/completions",
        {"model": "clerk", "messages": [{"role": "user", "content": "x"}] * 1025},
        "1024 messages fit",
    ),
    "arguments": (
        "/v1/chat/completions",
        {
            "model": "clerk",
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[" * 50_000}}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ],
        },
        "46080 can fit",
    ),
    "tools": ("/v1/chat/completions", chat_of("x", tools=[tool_of("x" * (LONGEST + 1))]), "46080 can fit"),
    "values": ("/v1/chat/completions", chat_of("x", tools=[{}] * 100_001), "100000 at most"),
    "prompt": ("/v1/completions", {"model": "clerk", "prompt": "x" * (LONGEST + 1)}, "46080 can fit"),
    "ids": ("/v1/completions", {"model": "clerk", "prompt": [7] * 1025}, "the context has 1024"),
    "million ids": ("/v1/completions", {"model": "clerk", "prompt": [7] * 10**6}, "the context has 1024"),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_what_cannot_fit_is_refused_before_it_is_rendered_or_tokenized(server: ChatServer, reading: Reading, name: str):
    """With the length that is possible; the tokenizer is not called."""
    reading.threads.clear()
    path, body, reason = TOO_LONG[name]
    refused = post(server, path, body)
    assert (refused.status_code, reason in refused.json()["error"]["message"]) == (400, True), refused.text
    assert refused.json()["error"]["code"] == ("invalid_value" if name == "values" else "context_length_exceeded")
    assert reading.threads == set()


def test_a_frame_that_cannot_fit_is_refused_in_the_same_way(server: ChatServer, reading: Reading):
    reading.threads.clear()
    address = f"{server.url.replace('http', 'ws')}/v1/chat/stream"
    with connect(address, additional_headers=server.headers()) as socket:
        socket.send(json.dumps(chat_of("x" * (LONGEST + 1))))
        error = json.loads(socket.recv(timeout=240))["error"]
    assert error["code"] == "context_length_exceeded"
    assert reading.threads == set()


@pytest.mark.parametrize("depth", [60, 70])
def test_json_is_at_most_64_brackets_deep(server: ChatServer, depth: int):
    """60 brackets of a schema, with the four around them, are answered; 70 are refused before they are parsed."""
    schema: dict[str, Any] = {}
    for _ in range(depth - 5):
        schema = {"a": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    answer = post(server, "/v1/chat/completions", chat_of("Hello", tools=[tool]))
    assert (answer.status_code, "brackets" in answer.text) == ((200, False) if depth < 64 else (400, True))


def test_texts_are_rendered_and_tokenized_off_the_event_loop(server: ChatServer, reading: Reading):
    """A first turn, its next one, tools that were not seen before, and a completion."""
    reading.threads.clear()
    first = post(server, "/v1/chat/completions", chat_of("  Hello, where is my order?"))
    name = first.json()["conversation_id"]
    assert post(server, "/v1/chat/completions", chat_of("And now?", conversation_id=name)).status_code == 200
    assert post(server, "/v1/chat/completions", chat_of("Hello", tools=[tool_of("unseen")])).status_code == 200
    assert post(server, "/v1/completions", {"model": "clerk", "prompt": "Hello", "max_tokens": 1}).status_code == 200
    assert {thread.rpartition("_")[0] for thread in reading.threads} == {"preparation-short"}


def test_too_many_waiting_characters_are_503_and_probes_are_answered(tmp_path: Path):
    """Of 30,000 characters each one key may have 35,000: while the first text is read, two others have no room."""
    reading, statuses = Reading(), list[tuple[int, bool]]()
    reading.gate.set()
    served, settings = noting(clerk(), reading), ServiceSettings(waiting_characters=70_000)
    with chat_server(tmp_path, lambda current: None if current else served, service=settings) as server:
        server.client()
        reading.gate.clear()

        def ask() -> None:
            answer = post(server, "/v1/chat/completions", chat_of("word " * 6000))
            statuses.append((answer.status_code, "retry-after" in answer.headers))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        try:
            for thread in threads:
                thread.start()
            while len(statuses) < 2:
                assert httpx.get(f"{server.url}/health", timeout=240).status_code == 200
        finally:
            reading.gate.set()
            for thread in threads:
                thread.join()
    assert statuses == [(503, True), (503, True), (400, False)]


@pytest.mark.parametrize("fields", [{"text": " " * 40_000}, {"text": "x", "tools": [tool_of("word " * 8000)]}])
def test_blanks_and_tools_wait_among_the_long_texts(server: ChatServer, reading: Reading, fields: dict[str, Any]):
    """40,000 characters each, of which the context cannot hold all: a short text does not wait for them."""
    reading.threads.clear()
    post(server, "/v1/chat/completions", chat_of(**fields))
    assert {thread.rpartition("_")[0] for thread in reading.threads} == {"preparation-long"}


def test_tools_take_from_the_tokens_of_a_key(server: ChatServer):
    """The clerk's template prints their names, at least one token for each of 100; the key has 100 a minute."""
    secret = server.keys.create("tools", ["chat"], CallerLimits(tokens_per_minute=100))
    with httpx.Client(headers={"Authorization": f"Bearer {secret}"}, timeout=60) as client:
        ask = partial(client.post, f"{server.url}/v1/chat/completions")
        tools = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(100)]
        assert ask(json=chat_of("x", tools=tools)).status_code == 429
        assert ask(json=chat_of("x")).status_code == 200


def test_a_long_request_is_digested_off_the_event_loop(server: ChatServer, monkeypatch: pytest.MonkeyPatch):
    """Its messages once, whatever the tools and versions, and those of the answered turn."""
    threads: list[str] = []
    make = DigestedMessages.of

    def of(*arguments: Any) -> DigestedMessages:
        threads.append(threading.current_thread().name.rpartition("_")[0])
        return make(*arguments)

    monkeypatch.setattr(DigestedMessages, "of", of)
    messages = [{"role": role, "content": "x" + " " * 9000} for role in ("user", "assistant", "user")]
    answer = post(server, "/v1/chat/completions", {"model": "clerk", "messages": messages, "max_tokens": 1})
    assert answer.status_code in (200, 400)
    assert {*threads} == {"preparation-short"}
    assert len(threads) == (2 if answer.status_code == 200 else 1)


@pytest.mark.parametrize("ends", ["answered", "left"])
def test_a_request_counts_while_it_is_prepared(server: ChatServer, reading: Reading, ends: str):
    """One at once for its key: the next one gets 429, also of the server's room one is taken, and both end with it."""
    secret = server.keys.create(f"parallel-{ends}", ["chat"], CallerLimits(parallel=1))
    headers = {"Authorization": f"Bearer {secret}"}
    content = json.dumps(chat_of("Hello")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
    reading.gate.clear()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=240) as connection:
            connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            until("it is prepared", lambda: server.service.requests == 1, patience_s=240)
            refused = httpx.post(f"{server.url}/v1/chat/completions", json=chat_of("x"), headers=headers, timeout=240)
            assert (refused.status_code, "run. Its limit is 1" in refused.text) == (429, True)
            if ends == "answered":
                reading.gate.set()
                assert b"200 OK" in connection.recv(1000)
        until("its room is free", lambda: server.service.requests == 0, patience_s=240)
    finally:
        reading.gate.set()
    assert (
        httpx.post(f"{server.url}/v1/chat/completions", json=chat_of("x"), headers=headers, timeout=60).status_code
        == 200
    )


def test_the_prompt_of_a_completion_is_read_once_for_all_choices(server: ChatServer, monkeypatch: pytest.MonkeyPatch):
    """Its tokens are decoded on a thread of the preparation, not for each of four choices."""
    threads: list[str] = []
    current = server.service.versions.current
    assert current is not None
    kind = type(current.renderer(()).tokenizer)
    decode = kind.decode

    def noting_decode(self: Any, ids: Any, *arguments: Any, **named: Any) -> Any:
        if list(ids) == [7] * 50:
            threads.append(threading.current_thread().name.rpartition("_")[0])
        return decode(self, ids, *arguments, **named)

    monkeypatch.setattr(kind, "decode", noting_decode)
    body = {"model": "clerk", "prompt": [7] * 50, "n": 4, "max_tokens": 1}
    assert post(server, "/v1/completions", body).status_code == 200
    assert threads == ["preparation-short"]


def test_a_version_that_is_named_keeps_its_tools_when_another_one_is_loaded(tmp_path: Path):
    """While its text is counted, a champion with other tools is loaded; the turn has those of the version it names."""
    reading = Reading()
    reading.gate.set()
    first = replace(noting(clerk(), reading), tools=(Tool(name="first"),))
    second = replace(clerk(2), tools=(Tool(name="second"),))
    may_load = threading.Event()

    def next_version(current: str) -> ServedModel | None:
        if not current:
            return first
        return second if current == "clerk/1" and may_load.is_set() else None

    with chat_server(tmp_path, next_version) as server:
        server.client()
        reading.gate.clear()
        answers: list[httpx.Response] = []
        body = {**chat_of("Hello"), "model": "clerk/1"}
        asking = threading.Thread(target=lambda: answers.append(post(server, "/v1/chat/completions", body)))
        try:
            asking.start()
            until("it is prepared", lambda: server.service.requests == 1, patience_s=240)
            may_load.set()
            until("another version", lambda: len(server.service.versions.loaded) == 2, patience_s=240)
        finally:
            reading.gate.set()
            asking.join()
        assert answers[0].status_code == 200, answers[0].text
        (turn,) = server.turns()
    assert (turn.model, [tool["name"] for tool in turn.tools]) == ("clerk/1", ["first"])
