from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from grpo.messages import Message, ToolCall
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.protocol.chat_request import ChatRequest


def request(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "clerk", "messages": list(messages), **fields})


def call(number: int, arguments: str = '{"order": "1"}') -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "look_up", "arguments": arguments}}


USER = {"role": "user", "content": "Where is it?"}


def test_results_of_several_calls_are_one_message_in_the_order_of_the_calls():
    """As rollouts give them: one result as it is, several as a JSON list, whatever their order in the request."""
    asked = {"role": "assistant", "content": None, "tool_calls": [call(1), call(2)]}
    results = [
        {"role": "tool", "tool_call_id": "call_2", "content": "late"},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"status": "shipped"}'},
    ]
    assert request(USER, asked, *results).to_messages() == (
        Message(role="user", content="Where is it?"),
        Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "1"}),) * 2),
        Message(role="tool", content='[{"status": "shipped"}, "late"]'),
    )
    single = request(USER, {**asked, "tool_calls": [call(1)]}, {**results[1], "content": "5"}).to_messages()
    assert single[-1] == Message(role="tool", content="5")


def test_a_result_may_answer_a_call_of_the_conversation_before():
    result = {"role": "tool", "tool_call_id": "call_7", "content": "{}"}
    assert request(result).to_messages(["call_7"]) == (Message(role="tool", content="{}"),)
    with pytest.raises(APIError, match="is not an open call"):
        request(result).to_messages(["call_8"])
    assert request(USER).to_messages(["call_7"]) == (Message(role="user", content="Where is it?"),)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "assistant", "content": "Hello"}], "the last message"),
        ([{"role": "system", "content": "Be brief."}], "there is no user message. Add a message with role user"),
        ([USER, {"role": "assistant", "tool_calls": [call(1)]}], "the last calls do not have all of their results"),
        ([USER, {"role": "assistant", "tool_calls": [call(1)]}, USER], "without their results"),
        ([USER, {"role": "assistant", "tool_calls": [call(1, "[1]")]}, USER], "not a JSON object"),
        ([USER, {"role": "assistant", "tool_calls": [call(1, "{")]}, USER], "cannot be read as JSON"),
        ([{"role": "user", "content": None}], "without text"),
        ([{"role": "user", "content": "x", "tool_calls": [call(1)]}], "without text"),
        ([{"role": "tool", "content": "x"}], "is not an open call"),
    ],
)
def test_messages_of_the_wrong_kind_are_refused(messages: list[dict[str, Any]], text: str):
    with pytest.raises(APIError, match=text):
        request(*messages).to_messages()


def test_parts_of_text_are_one_text_and_a_developer_is_the_system():
    parts = [{"type": "text", "text": "Where "}, {"type": "text", "text": "is it?"}]
    developer = {"role": "developer", "content": "Be brief."}
    assert request(developer, {"role": "user", "content": parts}).to_messages() == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Where is it?"),
    )


def test_system_messages_in_front_are_one_and_later_ones_stay_in_their_places():
    """Joined by an empty line, as the prompts of environment and client are."""
    two = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}]
    later = {"role": "system", "content": "Be quick."}
    assert request(*two, USER, later).to_messages() == (
        Message(role="system", content="Be brief.\n\nBe kind."),
        Message(role="user", content="Where is it?"),
        Message(role="system", content="Be quick."),
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": True}},
        {"stop": [""]},
        {"top_logprobs": 1},
        {"tool_choice": "any"},
        {"reasoning_effort": "low"},
        {"frequency_penalty": 0.1},
        {"temperature": float("nan")},
        {"n": True},
        {"conversation_id": "../etc"},
        {"strategy": "unknown"},
        {"tools": [{"type": "function", "function": {"name": "f"}}] * 2},
    ],
)
def test_a_field_that_would_be_ignored_is_refused(fields: dict[str, Any]):
    with pytest.raises(ValidationError):
        request(USER, **fields)


def test_fields_that_change_nothing_are_taken():
    """Clients send the defaults of OpenAI's API."""
    taken = request(
        USER, presence_penalty=0.0, frequency_penalty=0, logit_bias={}, parallel_tool_calls=True, tool_choice="auto"
    )
    assert taken.to_tools() == ()
    assert request(USER, metadata={"colour": "red", "category": "a"}).labels == {"category": "a"}
    assert request(USER, metadata={"conversation_id": "a"}).conversation == "a"
    assert request(USER, max_tokens=5, max_completion_tokens=7).max_reply_tokens == 7


def test_a_seed_has_sixty_four_bits():
    assert [request(USER, seed=seed).to_seed() for seed in (0, -1, 2**62)] == [0, 2**64 - 1, 2**62]


ARGUMENTS = '{"a": [' + ",".join(["1"] * 40_000) + "]}"


def test_values_of_all_arguments_are_bounded_together():
    """Each of three has 40,002 values, of which a request has 100,000; commas in a text are no values."""
    calls = [call(number) for number in range(3)]
    for each in calls:
        each["function"]["arguments"] = ARGUMENTS
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "5"} for each in calls]
    request(USER, {"role": "assistant", "tool_calls": calls[:2]}, *results[:2]).to_messages()
    with pytest.raises(APIError, match="more than 100000 values in all") as error:
        request(USER, {"role": "assistant", "tool_calls": calls}, *results).to_messages()
    assert error.value.param == "messages[1]"
    for each in calls:
        each["function"]["arguments"] = json.dumps({"a": "," * 50_000})
    request(USER, {"role": "assistant", "tool_calls": calls}, *results).to_messages()


def test_values_of_results_count_as_well():
    """Results of several calls are parsed: three of 40,001 values."""
    calls = [call(number) for number in range(3)]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": ARGUMENTS} for each in calls]
    with pytest.raises(APIError, match="more than 100000 values in all"):
        request(USER, {"role": "assistant", "tool_calls": calls}, *results).to_messages()


@pytest.mark.parametrize(
    ("fields", "characters"),
    [
        ({"messages": [{"role": "user", "content": " " * 4000}]}, 4000),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}] * 3}]}, 6),
        ({"tools": [{"type": "function", "function": {"name": "f", "description": "d" * 3000}}]}, 12 + 1 + 3000 + 2),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [call(1)]}, {"role": "tool", "tool_call_id": "x"}]},
            12 + len(call(1)["id"]) + len(call(1)["function"]["name"]) + len(call(1)["function"]["arguments"]) + 1,
        ),
    ],
)
def test_all_texts_of_a_request_count(fields: dict[str, Any], characters: int):
    """White space, parts, tools with their parameters `{}`, calls and ids; "Where is it?" has 12."""
    asked = ChatRequest.model_validate({"model": "clerk", "messages": [USER], **fields})
    assert asked.characters == characters
