from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import pytest

from grpo.config.serving import CallerLimits
from grpo.log.folder import ServedLog
from grpo.log.join import join
from grpo.log.records import Feedback
from grpo.messages import Message, ToolCall
from tests import waiting
from tests.grpo.serving.chat_servers import ChatServer

QUESTION = {"role": "user", "content": "Hello, where is my order 1234?"}
PLAIN = ("chat", "feedback")
until = partial(waiting.until, patience_s=240)


def ask(server: ChatServer, name: str, scopes: tuple[str, ...] = PLAIN) -> Any:
    return server.client(name, scopes).chat.completions.create(model="clerk", messages=[QUESTION], max_tokens=2)  # type: ignore[call-overload]


def send(server: ChatServer, name: str, scopes: tuple[str, ...] = PLAIN, **body: Any) -> httpx.Response:
    key = server.client(name, scopes).api_key
    return httpx.post(f"{server.url}/v1/feedback", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def logged(server: ChatServer) -> list[Feedback]:
    records = list(ServedLog(server.folder / "log").read())
    return [record for record in records if isinstance(record, Feedback)]


def test_feedback_on_the_conversation_of_another_key_is_refused_as_an_unknown_one(server: ChatServer):
    """Rating, correction and turn; the words are the same, and nothing is written."""
    reply, before = ask(server, "owner"), len(logged(server))
    body = {"turn_id": reply.id, "correction": "I have refunded your money."}
    foreign = send(server, "thief", conversation_id=reply.conversation_id, **body)
    invented = send(server, "thief", conversation_id="a" * 40, **body)
    assert (foreign.status_code, invented.status_code) == (404, 404)
    assert foreign.json()["error"]["code"] == invented.json()["error"]["code"] == "conversation_not_found"
    words = [
        answer.text.replace(name, "ID") for answer, name in ((foreign, reply.conversation_id), (invented, "a" * 40))
    ]
    assert words[0] == words[1]
    assert len(logged(server)) == before
    assert send(server, "owner", conversation_id=reply.conversation_id, **body).status_code == 200


@pytest.mark.parametrize(
    ("correction", "content", "calls"),
    [
        ({"role": "assistant", "content": "Sorry."}, "Sorry.", ()),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"order": "7"}'}}
                ],
            },
            "",
            (ToolCall(name="refund", arguments={"order": "7"}),),
        ),
    ],
)
def test_a_correction_may_be_a_message_of_openai(
    server: ChatServer, correction: dict[str, Any], content: str, calls: tuple[ToolCall, ...]
):
    """As a client has it: with a role, and with the arguments as JSON text."""
    reply = ask(server, "owner")
    answer = send(server, "owner", conversation_id=reply.conversation_id, turn_id=reply.id, correction=correction)
    assert answer.status_code == 200, answer.text
    assert logged(server)[-1].correction == Message(role="assistant", content=content, tool_calls=calls)
    body = {"turn_id": reply.id, "correction": {"role": "user", "content": "Sorry."}}
    wrong = send(server, "owner", conversation_id=reply.conversation_id, **body)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "correction")
    for empty in ({"content": None}, {"role": "assistant", "content": ""}, {"content": None, "tool_calls": []}):
        refused = send(server, "owner", conversation_id=reply.conversation_id, turn_id=reply.id, correction=empty)
        assert refused.status_code == 400, empty


def test_a_turn_of_another_conversation_is_refused(server: ChatServer):
    """Both conversations are of the key; an invented turn is refused like it, and a second choice is taken."""
    first, second = ask(server, "owner"), ask(server, "owner")
    for turn in (second.id, "chatcmpl-" + "a" * 32):
        answer = send(server, "owner", conversation_id=first.conversation_id, turn_id=turn, rating=1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "turn_id")
    choice = f"{first.id}-1"
    assert send(server, "owner", conversation_id=first.conversation_id, turn_id=choice, rating=1).status_code == 200


def test_the_completion_of_another_key_is_unknown(server: ChatServer):
    """Ids of raw completions carry their key as well."""
    answer = server.client("owner", PLAIN).completions.create(model="clerk", prompt="Hello", max_tokens=2)
    name = answer.id.removeprefix("cmpl-")
    assert send(server, "thief", conversation_id=name, rating=1).status_code == 404
    assert send(server, "owner", conversation_id=name, turn_id=name, rating=1).status_code == 200


@pytest.mark.parametrize("field", [{"success": True}, {"expected": {"facts": ["7"]}}, {"world": {"orders": {}}}])
def test_outcomes_need_their_scope(server: ChatServer, field: dict[str, Any]):
    """A key of customers may rate; the answer names the field."""
    reply, before = ask(server, "owner"), len(logged(server))
    refused = send(server, "owner", conversation_id=reply.conversation_id, rating=1, **field)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (403, "insufficient_scope", *field)
    assert len(logged(server)) == before
    scopes = (*PLAIN, "outcomes")
    own = ask(server, "verifier", scopes).conversation_id
    assert send(server, "verifier", scopes, conversation_id=own, **field).status_code == 200


def test_an_admin_speaks_about_every_conversation_and_the_log_says_so(server: ChatServer):
    """The record of the log has the scopes, so that its reader joins it; an invented id is unknown to an admin, too."""
    reply, scopes = ask(server, "owner"), ("feedback", "outcomes", "admin")
    answer = send(server, "operator", scopes, conversation_id=reply.conversation_id, success=True)
    assert answer.status_code == 200
    record = next(item for item in logged(server) if item.id == answer.json()["id"])
    assert record.scopes == ("admin", "feedback", "outcomes")
    joined = join(ServedLog(server.folder / "log").read())
    assert next(item.reward for item in joined.conversations if item.id == reply.conversation_id) == 1.0
    assert send(server, "operator", scopes, conversation_id="a" * 40, rating=1).status_code == 404


def test_feedback_counts_as_a_request_also_where_it_is_refused(server: ChatServer):
    """Two of one a minute: the third request is refused by its number, whether the ones before were taken or not."""
    secret = server.keys.create("slow", PLAIN, CallerLimits(requests_per_minute=2))
    body = {"conversation_id": "a" * 40, "rating": 1}

    def post() -> httpx.Response:
        return httpx.post(
            f"{server.url}/v1/feedback", json=body, headers={"Authorization": f"Bearer {secret}"}, timeout=60
        )

    answers = [post() for _ in range(3)]
    assert [answer.status_code for answer in answers] == [404, 404, 429]
    assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"


def test_the_size_of_feedback_counts_as_tokens(server: ChatServer):
    """A comment of 8,000 characters is at least 2,000 tokens, which a key of 1,000 a minute may never send."""
    secret = server.keys.create("small", PLAIN, CallerLimits(tokens_per_minute=1_000))
    body = {"conversation_id": "a" * 40, "comment": "x" * 8_000}
    answer = httpx.post(
        f"{server.url}/v1/feedback", json=body, headers={"Authorization": f"Bearer {secret}"}, timeout=60
    )
    assert answer.status_code == 429


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("world", {"world": {"orders": "x" * 70_000}}),
        ("world", {"world": nested(20)}),
        ("expected", {"expected": {"state": {"a": "x" * 70_000}}}),
        ("expected", {"expected": {"calls": [nested(40)]}}),
        ("comment", {"comment": "x" * 21_000}),
        ("correction", {"correction": "x" * 21_000, "turn_id": "t"}),
        (
            "correction",
            {"correction": {"tool_calls": [{"name": "f", "arguments": {"a": "x" * 70_000}}]}, "turn_id": "t"},
        ),
    ],
    ids=str,
)
def test_large_feedback_is_refused_by_the_name_of_its_field(server: ChatServer, param: str, body: dict[str, Any]):
    """Sizes and depth are bounded before anything is written."""
    scopes = (*PLAIN, "outcomes")
    own = ask(server, "verifier", scopes).conversation_id
    answer = send(server, "verifier", scopes, conversation_id=own, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)


def test_feedback_on_an_erased_conversation_is_unknown(server: ChatServer):
    """Its id would still say that the key had it."""
    reply = ask(server, "owner")
    address = f"{server.url}/v1/conversations/{reply.conversation_id}"
    httpx.delete(address, headers=server.headers(), timeout=60).raise_for_status()
    assert send(server, "owner", conversation_id=reply.conversation_id, rating=1).status_code == 404


def test_a_damaged_erasure_is_no_error_of_feedback(server: ChatServer):
    """It may name the conversation: feedback gets 503 until the file is gone, and 404 on an erased one."""
    erased, reply = ask(server, "owner").conversation_id, ask(server, "owner")
    httpx.delete(f"{server.url}/v1/conversations/{erased}", headers=server.headers(), timeout=60).raise_for_status()
    damaged = server.folder / "log" / "erasures" / "7c1f.json"
    damaged.write_text('{"time": ')
    given = {"conversation_id": reply.conversation_id, "rating": 1}
    until("the document", lambda: send(server, "owner", **given).status_code == 503)
    answer = send(server, "owner", **given).json()
    assert "an erasure in it cannot be read" in answer["error"]["message"]
    assert send(server, "owner", conversation_id=erased, rating=1).status_code == 404
    damaged.unlink()
    until("the repair", lambda: send(server, "owner", **given).status_code == 200)


@pytest.mark.parametrize("value", ["NaN", "1e999", "[" * 900 + "]" * 900, "[" * 100_000 + "]" * 100_000], ids=len)
@pytest.mark.parametrize("field", ["world", "expected", "correction"])
def test_numbers_that_are_not_finite_and_depth_are_refused_as_the_client_s_fault(
    server: ChatServer, field: str, value: str
):
    """A depth that only the parser refuses, and one that the parser takes."""
    scopes = (*PLAIN, "outcomes")
    reply = ask(server, "verifier", scopes)
    call = f'{{"name": "find", "arguments": {{"a": {value}}}}}'
    content = {
        "world": f'{{"a": {value}}}',
        "expected": f'{{"calls": [{call}]}}',
        "correction": f'{{"tool_calls": [{call}]}}',
    }[field]
    body = f'{{"conversation_id": "{reply.conversation_id}", "turn_id": "{reply.id}", "{field}": {content}}}'
    key = server.client("verifier", scopes).api_key
    headers = {"Authorization": f"Bearer {key}", "content-type": "application/json"}
    assert httpx.post(f"{server.url}/v1/feedback", content=body, headers=headers, timeout=60).status_code == 400
