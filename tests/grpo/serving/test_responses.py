"""OpenAI's Responses API, by OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.grpo.serving.chat_servers import ChatServer, chat_server

ASK = "Hello, where is my order 1234?"
TOOL = {
    "type": "function",
    "name": "look_up",
    "description": "Look an order up.",
    "parameters": {
        "type": "object",
        "properties": {"order": {"type": "string", "maxLength": 6}},
        "required": ["order"],
    },
    "strict": True,
}
SCHEMA = {
    "type": "object",
    "properties": {"urgent": {"type": "boolean"}},
    "required": ["urgent"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def ask(server: ChatServer, **fields: Any) -> Any:
    return server.client().responses.create(**{"model": "clerk", "input": ASK, "max_output_tokens": 200, **fields})


def test_a_response_has_text_usage_and_the_format(server: ChatServer):
    wanted = {"format": {"type": "json_schema", "name": "reply", "schema": SCHEMA, "strict": True}}
    response = ask(server, text=wanted, instructions="Be brief.", metadata={"a": "b"})
    assert response.status == "completed"
    assert response.output_text in ('{"urgent": true}', '{"urgent": false}')
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.text.format.schema_ == SCHEMA
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    cut = ask(server, text=wanted, max_output_tokens=1)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_tool_loop_goes_on_by_the_id_of_the_response(server: ChatServer):
    """The result belongs to the call of the response before, and both are turns of one conversation."""
    first = ask(server, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    (call,) = first.output
    assert (call.type, call.name) == ("function_call", "look_up")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"status": "shipped"}'}
    second = ask(server, input=[result], tools=[TOOL], previous_response_id=first.id)
    again = ask(server, input=[result], tools=[TOOL], previous_response_id=first.id)
    assert second.conversation_id == first.conversation_id == again.conversation_id
    turns = [turn for turn in server.turns() if turn.conversation_id == first.conversation_id]
    assert [turn.parent for turn in turns] == [None, turns[0].id, turns[0].id]
    assert server.service.counts.joined["fork"] == 1


def test_the_whole_conversation_is_found_again_by_its_items(server: ChatServer):
    first = ask(server, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    items = [{"role": "user", "content": ASK}, *(item.model_dump() for item in first.output)]
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "{}"}
    second = ask(server, input=[*items, result], tools=[TOOL])
    assert second.conversation_id == first.conversation_id


def test_events_of_a_stream_add_up_to_the_response(server: ChatServer):
    """Numbered from 0; deltas join to the text and to the arguments."""
    wanted = {"format": {"type": "json_schema", "name": "reply", "schema": SCHEMA}}
    for fields in ({"text": wanted}, {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}):
        events = list(ask(server, stream=True, **fields))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [events[0].type, events[1].type] == ["response.created", "response.in_progress"]
        response = events[-1].response
        assert events[-1].type == "response.completed"
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert [item.model_dump() for item in done] == [item.model_dump() for item in response.output]
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == response.output_text
        arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
        assert arguments == "".join(item.arguments for item in response.output if item.type == "function_call")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"background": True}, 400, "background"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            400,
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, 400, "input"),
        ({"tools": [{"type": "web_search", "name": "x"}]}, 400, "tools[0].type"),
        ({"previous_response_id": "resp_unknown"}, 404, "previous_response_id"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}, 400, "text.format"),
        ({"max_output_tokens": 5000}, 400, "max_output_tokens"),
    ],
)
def test_what_is_missing_is_refused_by_its_name_in_this_api(
    server: ChatServer, fields: dict[str, Any], status: int, param: str
):
    with pytest.raises(openai.APIStatusError) as error:
        ask(server, **fields)
    assert (error.value.status_code, error.value.param) == (status, param)


def test_other_instructions_than_the_conversation_began_with_are_refused(server: ChatServer):
    first = ask(server, instructions="Be brief.")
    assert ask(server, instructions="Be brief.", previous_response_id=first.id).conversation_id == first.conversation_id
    with pytest.raises(openai.BadRequestError) as error:
        ask(server, instructions="Be long.", previous_response_id=first.id)
    assert error.value.param == "instructions"


def test_a_path_that_is_not_there_is_a_404_with_those_that_are(server: ChatServer):
    """For a caller with a key of any scope; without a key it is 401, and a route without the scope stays 403."""
    server.client("narrow", ("chat",))
    headers = server.headers("narrow")
    for path, text in (
        ("/v1/embeddings", "there is no /v1/embeddings"),
        ("/chat/completions", "The base URL of a client ends in /v1"),
    ):
        answer = httpx.post(f"{server.url}{path}", json={}, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
        assert text in answer.json()["error"]["message"]
        assert httpx.post(f"{server.url}{path}", json={}, timeout=60).status_code == 401
    assert httpx.post(f"{server.url}/v1/train", json={}, headers=headers, timeout=60).status_code == 403


def test_instructions_that_are_sent_again_continue_their_conversation(server: ChatServer):
    """Also if the input brought a message of the developer, and if they are empty."""
    both: Any = [{"role": "developer", "content": "Answer in words."}, {"role": "user", "content": "Hello"}]
    for instructions, given in (("Be brief.", both), ("", "Hello")):
        first = ask(server, instructions=instructions, input=given)
        again = ask(server, instructions=instructions, previous_response_id=first.id)
        assert again.conversation_id == first.conversation_id
