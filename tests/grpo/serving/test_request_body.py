"""Worst bodies of every route with a JSON body: what they cost is bounded, and their fault is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError
from websockets.sync.client import connect

from grpo.config.serving import BODY_BYTES
from grpo.serving.access import refused_work
from grpo.serving.access.guard import SMALL_BODY_BYTES
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.protocol.completion_request import CompletionRequest
from grpo.serving.protocol.json_bounds import FAULTS, SMALL_VALUES
from grpo.serving.protocol.request_parts import MAX_PARTS
from grpo.serving.requests.feedback import FeedbackRequest
from grpo.serving.requests.logged_conversation import LogRequest
from grpo.serving.requests.request_body import parse_object
from grpo.serving.routes.operations import ScaleRequest, TrainRequest
from tests.grpo.serving.chat_servers import ChatServer, chat_server

HELLO = {"role": "user", "content": "Hello"}
CHAT: dict[str, Any] = {"model": "clerk", "messages": [HELLO]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}
COMPLETION: dict[str, Any] = {"model": "clerk", "prompt": "Hello"}
FEEDBACK: dict[str, Any] = {"conversation_id": "x"}
TRAIN: dict[str, Any] = {"config": "train/quickstart"}


def fields(count: int, value: Any = 1) -> dict[str, Any]:
    """Fields that no request has."""
    return {f"x{index}": value for index in range(count)}


def chat_with(**message: Any) -> dict[str, Any]:
    return {**CHAT, "messages": [{"role": "user", **message}]}


def tools_with(**function: Any) -> dict[str, Any]:
    return {**CHAT, "tools": [{"type": "function", "function": {**TOOL["function"], **function}}] * 128}


TEXT = {"type": "text", "text": ""}
GENERATING: dict[str, tuple[dict[str, Any], str]] = {
    "content of numbers": (chat_with(content=[1] * 99_000), "messages[0].content"),
    "messages of bad parts": (
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "x"}] * 40}] * 1_100},
        "messages[0].content",
    ),
    "messages that are numbers": ({**CHAT, "messages": [1] * 99_000}, "messages"),
    "good parts": (chat_with(content=[TEXT] * 30_000), "messages[0].content"),
    "calls that are numbers": (chat_with(tool_calls=[1] * 99_000), "messages[0].tool_calls"),
    "unknown fields": ({**CHAT, **fields(95_000)}, "x0"),
    "unknown fields of a message": (chat_with(content="Hello", **fields(95_000)), "messages[0].x0"),
    "unknown fields of a part": (chat_with(content=[{**TEXT, **fields(95_000)}]), "messages[0].content"),
    "unknown fields of tools": (tools_with(**fields(700)), "tools[0].function.x0"),
    "tools that are numbers": ({**CHAT, "tools": [1] * 99_000}, "tools"),
    "unknown fields of options": ({**CHAT, "stream": True, "stream_options": fields(95_000)}, "stream_options.x0"),
    "unknown fields of a format": ({**CHAT, "response_format": fields(95_000)}, "response_format"),
    "biases": ({**CHAT, "logit_bias": fields(95_000)}, "logit_bias"),
    "bad biases": ({**CHAT, "logit_bias": fields(95_000, "a")}, "logit_bias"),
    "metadata": ({**CHAT, "metadata": fields(95_000)}, "metadata"),
    "stops that are numbers": ({**CHAT, "stop": [1] * 99_000}, "stop"),
    "stops": ({**CHAT, "stop": ["a"] * 99_000}, "stop"),
}
COMPLETING: dict[str, tuple[dict[str, Any], str]] = {
    "unknown fields of a completion": ({**COMPLETION, **fields(9_000)}, "x0"),
    "bad tokens": ({**COMPLETION, "prompt": [-1] * 1_000}, "prompt"),
    "stop tokens": ({**COMPLETION, "stop_token_ids": [-1] * 9_000}, "stop_token_ids"),
    "stops that are numbers": ({**COMPLETION, "stop": [1] * 9_000}, "stop"),
    "biases": ({**COMPLETION, "logit_bias": fields(9_000, "a")}, "logit_bias"),
}
TOO_MANY, TOO_DEEP = f"A request has {SMALL_VALUES} at most", "brackets within each other"
DEEP: list[Any] = reduce(lambda inner, _: [inner], range(800), [])
SMALL: dict[str, tuple[str, dict[str, Any], str]] = {
    "expected calls": ("/v1/feedback", {**FEEDBACK, "expected": {"calls": [1] * 120_000}}, TOO_MANY),
    "few bad calls": ("/v1/feedback", {**FEEDBACK, "expected": {"calls": [1] * 4_000}}, "expected.calls[0]: "),
    "bad expectation": ("/v1/feedback", {**FEEDBACK, "expected": fields(4_000)}, "4000 faults, too many to"),
    "bad responses": ("/v1/feedback", {**FEEDBACK, "expected": {"responses": [1] * 100}}, "expected.responses[0]: "),
    "world": ("/v1/feedback", {**FEEDBACK, "world": {"a": [[]] * 85_000}}, TOO_MANY),
    "deep world": ("/v1/feedback", {**FEEDBACK, "world": {"a": DEEP}}, TOO_DEEP),
    "unknown fields": ("/v1/feedback", {**FEEDBACK, "rating": 1, **fields(24_000)}, TOO_MANY),
    "some unknown fields": ("/v1/feedback", {**FEEDBACK, "rating": 1, **fields(4_000)}, "x0: unknown parameter"),
    "messages of a log": ("/v1/log", {"id": "a", "model": "m", "messages": [1] * 4_000}, "messages[0]"),
    "unknown fields of a log": ("/v1/log", {"id": "a", **fields(4_000)}, "x0: unknown parameter"),
    "corrected calls": ("/v1/feedback", {**FEEDBACK, "correction": {"tool_calls": [1] * 4_000}}, "correction"),
    "unknown fields of train": ("/v1/train", {**TRAIN, **fields(24_000)}, TOO_MANY),
    "overrides": ("/v1/train", {**TRAIN, "overrides": fields(4_000, "a")}, "overrides: it has 4000 entries. Send 50"),
    "some fields of scale": ("/v1/scale", fields(4_000), "x0: unknown parameter"),
    "unknown fields of a pool": ("/v1/scale", {"work_pool": fields(4_000)}, "work_pool.x0: unknown parameter"),
    "values of scale": ("/v1/scale", {"max_requests": [[]] * 80_000}, TOO_MANY),
}
KINDS: dict[str, type[BaseModel]] = {
    "/v1/feedback": FeedbackRequest,
    "/v1/log": LogRequest,
    "/v1/train": TrainRequest,
    "/v1/scale": ScaleRequest,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with pytest.MonkeyPatch.context() as patch, chat_server(tmp_path_factory.mktemp("server")) as running:
        patch.setattr(refused_work, "REFUSED_CPU_S", 600.0)  # all bodies are refused for what they are, at any speed
        yield running


def encoded(body: dict[str, Any], most: int) -> bytes:
    content = json.dumps(body, separators=(",", ":")).encode()
    assert len(content) <= most, "the guard would refuse this body"
    return content


def faults(kind: type[BaseModel], body: dict[str, Any]) -> int:
    """Faults that pydantic finds, each of which it has built an error for."""
    with pytest.raises(ValidationError) as invalid:
        kind.model_validate(body)
    return invalid.value.error_count()


@pytest.mark.parametrize("body", [body for body, _ in GENERATING.values()], ids=GENERATING.keys())
def test_a_bad_chat_has_few_faults(body: dict[str, Any]):
    """Validation stops at the first bad item of a list, and at an object with too many fields."""
    assert faults(ChatRequest, body) <= 8


@pytest.mark.parametrize("body", [body for body, _ in COMPLETING.values()], ids=COMPLETING.keys())
def test_a_bad_completion_has_few_faults(body: dict[str, Any]):
    """As of a chat."""
    assert faults(CompletionRequest, body) <= 8


@pytest.mark.parametrize(("path", "body", "message"), SMALL.values(), ids=SMALL.keys())
def test_a_bad_body_of_another_route_has_few_values(path: str, body: dict[str, Any], message: str):
    """More values are refused before any is parsed, and at most as many faults are found."""
    content = encoded(body, SMALL_BODY_BYTES)
    if message in (TOO_MANY, TOO_DEEP):
        with pytest.raises(APIError, match=message):
            parse_object(content, values=SMALL_VALUES)
    else:
        parse_object(content, values=SMALL_VALUES)
        assert faults(KINDS[path], body) <= (FAULTS if "too many to" not in message else SMALL_VALUES)


def error(server: ChatServer, path: str, content: bytes) -> tuple[int, dict[str, str | None]]:
    answer = httpx.post(f"{server.url}{path}", content=content, headers=server.headers(), timeout=60)
    return answer.status_code, answer.json()["error"]


def test_the_first_fault_of_the_worst_bodies_is_named(server: ChatServer):
    """Over HTTP, for every route with a body: 400 with the parameter, or with the number of values or faults."""
    for path, bodies in (("/v1/chat/completions", GENERATING), ("/v1/completions", COMPLETING)):
        for name, (body, param) in bodies.items():
            status, fault = error(server, path, encoded(body, BODY_BYTES))
            assert (name, status) == (name, 400)
            assert (fault["param"] or "").startswith(param), (name, fault)
    for name, (path, body, message) in SMALL.items():
        status, fault = error(server, path, encoded(body, SMALL_BODY_BYTES))
        assert (name, status) == (name, 400)
        assert message in str(fault["message"]), (name, fault)


def test_the_worst_frames_of_a_websocket_are_refused_with_the_parameter(server: ChatServer):
    """As over HTTP, and the connection stays open."""
    with connect(
        f"{server.url.replace('http', 'ws')}/v1/chat/stream", additional_headers=server.headers("socket")
    ) as socket:
        for name, (body, param) in GENERATING.items():
            socket.send(encoded(body, BODY_BYTES).decode())
            answer = json.loads(socket.recv())
            assert answer["status"] == 400, name
            assert (answer["error"]["param"] or "").startswith(param), name


def test_a_message_has_as_many_parts_as_it_may(server: ChatServer):
    """256 parts are read as one text, and one more is refused with the parameter."""
    part = {"type": "text", "text": "a "}
    for count, expected in ((MAX_PARTS, 200), (MAX_PARTS + 1, 400)):
        body = {**CHAT, "max_tokens": 1, "messages": [{"role": "user", "content": [part] * count}]}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=server.headers("parts"), timeout=60)
        assert answer.status_code == expected, answer.text
