"""Errors in OpenAI's shape, and the headers that its client obeys."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from starlette.testclient import TestClient

from grpo.serving.protocol.api_errors import (
    APIError,
    error_body,
    error_headers,
    error_response,
    install_error_handlers,
    invalid_request,
    overloaded,
)


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: str
    temperature: Annotated[float, Field(le=2)] = 1.0


class Chat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    messages: list[Message]


def _app() -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)

    @app.post("/chat")
    async def chat(body: Chat) -> int:
        return len(body.messages)

    @app.get("/errors/{kind}")
    async def fail(kind: str) -> None:
        if kind == "ours":
            raise overloaded("64 requests wait", retry_after_s=1.25)
        if kind == "starlette":
            raise HTTPException(418, "a teapot", headers={"x-pot": "1"})
        if kind == "404":
            raise HTTPException(404, "no model of that name")
        raise ZeroDivisionError("secret detail")

    return app


CLIENT = TestClient(_app(), raise_server_exceptions=False)


def _error(body: Any) -> tuple[int, dict[str, Any]]:
    content = body if isinstance(body, bytes) else json.dumps(body)
    response = CLIENT.post("/chat", content=content, headers={"content-type": "application/json"})
    assert list(response.json()) == ["error"]
    assert list(response.json()["error"]) == ["message", "type", "param", "code"]
    return response.status_code, response.json()["error"]


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        ({}, "messages", "missing_required_parameter", "messages: Field required"),
        ({"messages": [], "top_q": 1}, "top_q", "unknown_parameter", "top_q: unknown parameter"),
        ({"messages": [{}]}, "messages[0].role", "missing_required_parameter", "messages[0].role: Field required"),
        ({"messages": 7}, "messages", "invalid_type", "messages: Input should be a valid list"),
        (
            {"messages": [{"role": "a", "temperature": 3}]},
            "messages[0].temperature",
            "invalid_value",
            "less than or equ",
        ),
        ([], None, "invalid_type", "valid dictionary"),
        (b"{", None, "invalid_json", "the body is not valid JSON"),
        (b"", None, "missing_required_parameter", "Field required"),
        (b"\xff\xfe{}", None, "invalid_json", "not valid JSON"),
        (b'{"messages": "\xff"}', None, None, "parsing the body"),
        (b"[" * 100_000, None, None, ""),
        (b'{"messages": NaN}', "messages", "invalid_type", "list"),
        (b'{"\\ud800": 1, "messages": []}', None, "invalid_value", "valid string"),
        (b'{"messages": ' + b"9" * 10_000 + b"}", None, None, "parsing the body"),
        (b"\x00", None, "invalid_json", "not valid JSON"),
    ],
)
def test_an_invalid_request_is_a_400_that_names_its_parameter(body: Any, param: str, code: str, message: str):
    """Never a 5xx, whatever the bytes."""
    status, error = _error(body)
    assert status == 400
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert message in error["message"]


def test_unknown_paths_and_methods_have_the_same_shape():
    """With the Allow header of a 405; a 404 of a route keeps its message."""
    response = CLIENT.get("/nowhere")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")
    assert response.json()["error"]["message"].startswith(
        "there is no /nowhere. This server has /v1/chat/completions, "
    )
    response = CLIENT.get("/chat")
    assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    response = CLIENT.get("/errors/404")
    assert (response.status_code, response.json()["error"]["message"]) == (404, "no model of that name")
    response = CLIENT.get("/errors/starlette")
    assert (response.status_code, response.json()["error"]["message"]) == (418, "a teapot")
    assert response.headers["x-pot"] == "1"


def test_a_failure_does_not_tell_its_cause():
    """500 and a server_error; the cause is for the log."""
    response = CLIENT.get("/errors/fault")
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert "secret" not in response.text


def test_a_limit_of_the_server_is_a_503_with_its_wait():
    """In whole seconds, rounded up, and in milliseconds."""
    response = CLIENT.get("/errors/ours")
    assert response.status_code == 503
    assert response.json()["error"] == {
        "message": "64 requests wait",
        "type": "overloaded_error",
        "param": None,
        "code": "overloaded",
    }
    headers = {name: response.headers[name] for name in ("retry-after", "retry-after-ms", "x-should-retry")}
    assert headers == {"retry-after": "2", "retry-after-ms": "1250", "x-should-retry": "true"}


@pytest.mark.parametrize(
    ("status", "wait", "headers"),
    [
        (429, 0.0001, {"retry-after": "1", "retry-after-ms": "1", "x-should-retry": "true"}),
        (429, 1.2341, {"retry-after": "2", "retry-after-ms": "1235", "x-should-retry": "true"}),
        (429, 120.0, {"retry-after": "120", "retry-after-ms": "120000", "x-should-retry": "true"}),
        (429, 120.5, {"retry-after": "121", "retry-after-ms": "120500", "x-should-retry": "false"}),
        (429, None, {"x-should-retry": "false"}),
        (400, None, {}),
    ],
)
def test_a_second_try_is_asked_for_only_where_it_helps(status: int, wait: float | None, headers: dict[str, str]):
    """OpenAI's client waits two minutes at most."""
    assert error_headers(APIError(status, "x", retry_after_s=wait)) == headers


def test_a_message_may_hold_any_text():
    """A surrogate has no UTF-8 and is escaped."""
    error = invalid_request("a \ud800 b", param="x")
    assert json.loads(bytes(error_response(error).body)) == error_body(error)
