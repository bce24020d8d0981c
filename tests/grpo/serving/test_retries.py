"""Requests that are sent again, branches of a conversation by its id, and what is refused before it is logged."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.grpo.serving.chat_servers import ChatServer, chat_server

ASK = {"role": "user", "content": "Hello, where is my order 1234?"}
NEXT = {"role": "user", "content": "Go on."}
PARAMETERS = {"type": "object", "properties": {"order": {"type": "string", "maxLength": 6}}, "required": ["order"]}


def tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look_up", "parameters": parameters}}


TOOLS = [tool(PARAMETERS)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def chat(server: ChatServer, *messages: Any, name: str = "shop", **fields: Any) -> Any:
    body = {"model": "clerk", "messages": messages or [ASK], "max_tokens": 8, "seed": 1, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=server.headers(name), timeout=240)


def said(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


def called(server: ChatServer, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Id of a new conversation whose reply is a call, and the call."""
    answer = chat(server, tools=TOOLS, tool_choice="required", max_tokens=100, **fields)
    (call,) = said(answer)["tool_calls"][:1]
    return answer.json()["conversation_id"], call


def parents(server: ChatServer, conversation: str) -> dict[str, str | None]:
    return {turn.id: turn.parent for turn in server.turns() if turn.conversation_id == conversation}


def test_a_whole_conversation_that_is_sent_again_by_id_is_answered_again(server: ChatServer):
    """The answer to the first attempt was lost. The second one is another branch after the same turn."""
    first = chat(server)
    whole = [ASK, said(first), NEXT]
    name = first.json()["conversation_id"]
    lost, again = (chat(server, *whole, conversation_id=name) for _ in range(2))
    assert said(lost)["content"] == said(again)["content"]
    turn = first.json()["id"].removeprefix("chatcmpl-")
    assert list(parents(server, name).values()) == [None, turn, turn]
    following = chat(server, *whole, said(again), NEXT, conversation_id=name)
    assert following.json()["conversation_id"] == name
    assert list(parents(server, name).values())[-1] == again.json()["id"].removeprefix("chatcmpl-")


def test_a_whole_conversation_goes_on_from_its_own_branch(server: ChatServer):
    """Also if another branch was answered last."""
    first = chat(server, name="branches")
    name = first.json()["conversation_id"]
    texts = [{"role": "user", "content": text} for text in ("I want a refund.", "Cancel it.")]
    branches = [chat(server, ASK, said(first), text, name="branches") for text in texts]
    assert {branch.json()["conversation_id"] for branch in branches} == {name}
    for text, branch in zip(texts, branches, strict=True):
        answer = chat(server, ASK, said(first), text, said(branch), NEXT, conversation_id=name, name="branches")
        assert answer.json()["conversation_id"] == name, answer.text
        assert list(parents(server, name).values())[-1] == branch.json()["id"].removeprefix("chatcmpl-")
    unknown = chat(
        server, ASK, {"role": "assistant", "content": "Never said."}, NEXT, conversation_id=name, name="branches"
    )
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "messages")


def test_results_that_are_sent_again_are_answered_after_their_calls(server: ChatServer):
    """The answer to the first attempt was lost. A call of another conversation stays unknown."""
    name, call = called(server)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "{}"}
    once, again = (chat(server, result, conversation_id=name, tools=TOOLS) for _ in range(2))
    assert said(once)["content"] == said(again)["content"]
    turns = parents(server, name)
    assert list(turns.values()) == [None, *[next(iter(turns))] * 2]
    other, _ = called(server, name="another")
    refused = chat(server, result, conversation_id=other, tools=TOOLS, name="another")
    assert refused.status_code == 400
    assert "is not an open call" in refused.json()["error"]["message"]


def test_results_for_an_unknown_conversation_are_told_apart_by_404(server: ChatServer):
    """A client resends the whole conversation then, for example after a restart of the server."""
    result = {"role": "tool", "tool_call_id": "call_x_0", "content": "{}"}
    for messages in ([result], [NEXT]):
        answer = chat(server, *messages, conversation_id="nope", tools=TOOLS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")


def test_calls_need_their_results_before_the_conversation_goes_on(server: ChatServer):
    name, call = called(server)
    answer = chat(server, NEXT, conversation_id=name, tools=TOOLS)
    assert answer.status_code == 400
    assert call["id"] in answer.json()["error"]["message"]

    def respond(previous: str, *items: Any, **fields: Any) -> httpx.Response:
        tool = {"type": "function", "name": "look_up", "parameters": PARAMETERS}
        body = {"model": "clerk", "input": items, "previous_response_id": previous, "tools": [tool], **fields}
        return httpx.post(f"{server.url}/v1/responses", json=body, headers=server.headers(), timeout=240)

    turn = f"resp_{next(iter(parents(server, name)))}"
    output = {"type": "function_call_output", "call_id": call["id"], "output": "{}"}
    repeated = {"type": "function_call", "call_id": call["id"], "name": "look_up", "arguments": "{}"}
    invented = {"role": "assistant", "content": "I have refunded it."}
    for items in ([NEXT], [repeated, output], [output, invented, NEXT]):
        answer = respond(turn, *items)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input"), answer.text
    conflict = respond(turn, output, conversation_id=called(server)[0])
    assert (conflict.status_code, conflict.json()["error"]["param"]) == (400, "conversation_id"), conflict.text
    assert respond(turn, output, conversation_id=name).status_code == 200


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("metadata.domain", {"metadata": {"domain": "example.com"}}),
        ("metadata.domain", {"metadata": {"domain": ""}}),
        ("metadata.category", {"metadata": {"category": ""}}),
        ("metadata.category", {"metadata": {"category": "x" * 201}}),
        ("metadata.conversation_id", {"conversation_id": "a", "metadata": {"conversation_id": "b"}}),
        ("tools[0].function.parameters", {"tools": [tool({"properties": 5})]}),
        ("tools[0].function.parameters", {"tools": [tool({"properties": {"a": None}})]}),
        ("tools[0].function.parameters", {"tools": [tool({"properties": {}, "required": "a"})]}),
    ],
)
def test_what_would_fail_later_is_refused_at_once(server: ChatServer, param: str, fields: dict[str, Any]):
    """A label that no scenario may have, and a schema that chat templates cannot print."""
    answer = chat(server, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_null_is_absent_in_the_schema_of_a_tool(server: ChatServer):
    parameters = {"type": "object", "properties": None, "required": None}
    assert chat(server, tools=[tool(parameters)]).status_code == 200


@pytest.mark.parametrize("correction", [" ", 5, ["It is late."]])
def test_a_correction_that_is_no_reply_is_refused(server: ChatServer, correction: Any):
    reply = chat(server).json()
    body = {"conversation_id": reply["conversation_id"], "turn_id": reply["id"], "correction": correction}
    answer = httpx.post(f"{server.url}/v1/feedback", json=body, headers=server.headers(), timeout=240)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "correction"), answer.text


def test_a_cut_response_has_an_incomplete_message(server: ChatServer):
    response = server.client().responses.create(model="clerk", input=[ASK], max_output_tokens=1)  # type: ignore[list-item]
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]


def test_a_server_that_drains_answers_probes_and_refuses_requests_until_its_replies_are_sent(tmp_path: Path):
    with chat_server(tmp_path) as server, ThreadPoolExecutor() as pool, httpx.Client(base_url=server.url) as probe:
        server.client()
        engine = server.service.versions.current
        assert engine is not None
        running = pool.submit(chat, server, max_tokens=200, n=8, temperature=2.0)
        while not engine.running:
            server.wait(0.001)
        server.server.handle_exit(signal.SIGTERM, None)
        states = [probe.get("/ready").status_code, probe.get("/health").status_code, chat(server).status_code]
        if not running.done():  # otherwise the server may have ended before the last request
            assert states == [503, 200, 503]
        assert said(running.result())
    with pytest.raises(openai.APIConnectionError):
        server.client("late").models.list()


def test_the_reason_why_arguments_are_not_read_is_named(server: ChatServer):
    call = {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": '{"order": NaN}'}}
    answer = chat(server, ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, NEXT)
    assert answer.status_code == 400
    assert "cannot be read as JSON: NaN" in answer.json()["error"]["message"]
