from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from grpo.config.serving import CallerLimits
from grpo.log.folder import ServedLog
from grpo.log.join import ServedConversation, join
from grpo.messages import Message, ToolCall
from tests.grpo.serving.chat_servers import ChatServer

QUESTION = {"role": "user", "content": "Where is my order 17?"}
CALLS = [
    {"id": name, "type": "function", "function": {"name": "look_up", "arguments": '{"order": "17"}'}}
    for name in ("c1", "c2")
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You run the order desk."},
    QUESTION,
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c2", "content": '"shipped"'},
    {"role": "tool", "tool_call_id": "c1", "content": "lost"},
    {"role": "assistant", "content": "It is lost.", "refusal": None},
]
BODY = {"id": "order 17 / 2", "model": "desk/1", "messages": MESSAGES, "consent": "training", "licence": "own"}
LOG = ("log",)


def send(server: ChatServer, name: str, scopes: tuple[str, ...] = LOG, **changes: Any) -> httpx.Response:
    key = server.client(name, scopes).api_key
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}/v1/log", json={**BODY, **changes}, headers=headers, timeout=60)


def error(response: httpx.Response) -> tuple[int, str | None, str | None]:
    """Status, code and parameter of an error in the one shape."""
    body = response.json()["error"]
    assert body.keys() == {"message", "type", "param", "code"}
    return response.status_code, body["code"], body["param"]


def logged(server: ChatServer) -> dict[str, ServedConversation]:
    return {item.id: item for item in join(ServedLog(server.folder / "log").read()).conversations}


def test_a_conversation_of_another_server_is_logged(server: ChatServer):
    """Its messages as the readers of the log have them: results in one message, in the order of the calls."""
    start = "2021-11-20T12:00:00+01:00"
    answer = send(server, "desk", time=start, category="missing", domain="sales", user="ann")
    assert answer.status_code == 200, answer.text
    conversation = logged(server)[answer.json()["conversation_id"]]
    assert [turn.id for turn in conversation.turns] == answer.json()["turn_ids"]
    assert answer.json()["object"] == "logged_conversation"
    call = ToolCall(name="look_up", arguments={"order": "17"})
    assert conversation.messages == (
        Message(role="system", content="You run the order desk."),
        Message(role="user", content="Where is my order 17?"),
        Message(role="assistant", content="", tool_calls=(call, call)),
        Message(role="tool", content='["lost", "shipped"]'),
        Message(role="assistant", content="It is lost."),
    )
    assert (conversation.model, conversation.category, conversation.domain) == ("desk/1", "missing", "sales")
    assert (conversation.consent, conversation.licence) == ("training", "own")
    assert conversation.turns[0].time == datetime(2021, 11, 20, 11, tzinfo=UTC)
    assert conversation.turns[0].user not in ("", "ann")


def test_a_repeated_request_counts_once_and_another_key_has_conversations_of_its_own(server: ChatServer):
    """The log makes the ids from the key and the name that the key gives the conversation."""
    first, again = (send(server, "team", id="again").json() for _ in range(2))
    assert first == again
    other = send(server, "thief", id="again").json()
    assert other["conversation_id"] != first["conversation_id"]
    assert logged(server)[first["conversation_id"]].messages[-1].content == "It is lost."


def test_feedback_on_a_logged_conversation_is_accepted_from_its_key(server: ChatServer):
    """A correction of a reply by its turn; another key has no such conversation."""
    scopes = ("log", "feedback")
    ids = send(server, "reviewed", scopes, id="reviewed").json()
    body = {"conversation_id": ids["conversation_id"], "turn_id": ids["turn_ids"][-1], "correction": "It is found."}

    def give(name: str, scopes: tuple[str, ...]) -> int:
        headers = {"Authorization": f"Bearer {server.client(name, scopes).api_key}"}
        return httpx.post(f"{server.url}/v1/feedback", json=body, headers=headers, timeout=60).status_code

    assert (give("reviewed", scopes), give("stranger", ("feedback",))) == (200, 404)
    judgements = logged(server)[ids["conversation_id"]].turn_judgements
    correction = judgements[ids["turn_ids"][-1]].correction
    assert correction is not None
    assert correction.content == "It is found."


def test_the_route_needs_its_scope_and_outcomes_need_theirs(server: ChatServer):
    """A rating needs only `log`; nothing of a refused conversation is written."""
    before = len(logged(server))
    assert error(send(server, "customer", ("chat", "feedback"), id="x")) == (403, "insufficient_scope", None)
    assert error(send(server, "desk", id="x", success=True)) == (403, "insufficient_scope", "success")
    assert len(logged(server)) == before
    rated = send(server, "desk", id="rated", rating=0.25).json()["conversation_id"]
    verified = send(server, "verifier", ("log", "outcomes"), id="verified", success=False, world={"orders": {}})
    conversations = logged(server)
    assert conversations[rated].judgement.rating == 0.25
    assert conversations[verified.json()["conversation_id"]].reward == 0.0
    assert conversations[verified.json()["conversation_id"]].judgement.world == {"orders": {}}


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"messages": [QUESTION]}, None, "messages"),
        ({"messages": MESSAGES[:4]}, None, "messages"),
        ({"messages": [{"role": "boss", "content": "Hi."}]}, "invalid_value", "messages[0].role"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"time": "9000-01-01T00:00:00Z"}, "invalid_value", "time"),
        ({"time": "2021-11-20T12:00:00"}, "invalid_value", "time"),
        ({"time": "0001-01-01T00:00:00+14:00"}, "invalid_value", "time"),
        ({"time": 0}, "invalid_value", "time"),
        ({"id": ""}, "invalid_value", "id"),
        ({"id": "x" * 300}, "invalid_value", "id"),
        ({"rating": 2}, "invalid_value", "rating"),
        ({"domain": "moon"}, "invalid_value", "domain"),
        ({"stars": 5}, "unknown_parameter", "stars"),
        ({"world": {"orders": "x" * 70_000}}, "invalid_value", "world"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name"),
    ],
    ids=str,
)
def test_a_conversation_that_cannot_be_logged_is_refused_by_the_name_of_its_parameter(
    server: ChatServer, changes: dict[str, Any], code: str | None, param: str
):
    """400, before anything is written."""
    before = len(logged(server))
    refused = error(send(server, "verifier", ("log", "outcomes"), **{"id": "bad", **changes}))
    assert (refused[0], refused[2]) == (400, param)
    assert code is None or refused[1].startswith("invalid_type" if code == "invalid_type" else code)
    assert len(logged(server)) == before


def test_a_required_field_is_named(server: ChatServer):
    """The model that answered, for example."""
    body = {name: value for name, value in BODY.items() if name != "model"}
    headers = {"Authorization": f"Bearer {server.client('desk', LOG).api_key}"}
    answer = httpx.post(f"{server.url}/v1/log", json=body, headers=headers, timeout=60)
    assert error(answer) == (400, "missing_required_parameter", "model")


def test_a_large_conversation_is_refused_before_it_is_read(server: ChatServer):
    """The body has the bound of routes that generate nothing."""
    messages = [QUESTION, {"role": "assistant", "content": "x" * 300_000}]
    assert error(send(server, "desk", id="large", messages=messages))[:2] == (413, "request_too_large")


def test_a_conversation_of_middle_size_is_read_off_the_event_loop(server: ChatServer):
    """Above 16 KiB, the threads that prepare requests parse it."""
    messages = [QUESTION, {"role": "assistant", "content": "x" * 100_000}]
    answer = send(server, "desk", id="middle", messages=messages).json()
    assert len(logged(server)[answer["conversation_id"]].messages[-1].content) == 100_000


def test_a_conversation_counts_in_the_limits_of_its_key(server: ChatServer):
    """One request, and a token for every four bytes."""
    secret = server.keys.create("slow", LOG, CallerLimits(requests_per_minute=1))
    small = server.keys.create("small", LOG, CallerLimits(tokens_per_minute=100))
    codes = []
    for key in (secret, secret, small):
        headers = {"Authorization": f"Bearer {key}"}
        codes.append(httpx.post(f"{server.url}/v1/log", json=BODY, headers=headers, timeout=60).status_code)
    assert codes == [200, 429, 429]


def test_an_erased_conversation_is_not_logged_again(server: ChatServer):
    """The other server still has it, and sends it once more."""
    name = send(server, "desk", id="erased").json()["conversation_id"]
    address = f"{server.url}/v1/conversations/{name}"
    httpx.delete(address, headers=server.headers(), timeout=60).raise_for_status()
    assert name not in logged(server)
    assert error(send(server, "desk", id="erased")) == (410, "conversation_erased", None)
    assert name not in logged(server)
