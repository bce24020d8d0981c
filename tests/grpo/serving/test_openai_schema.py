"""Requests generated from the types of OpenAI's own package: every field is null, without effect, or with an effect.

A field that its next version adds fails here until it stands in one of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from openai.types import chat, responses
from openai.types.chat import completion_create_params, parsed_chat_completion
from openai.types.responses import response_create_params

from grpo.serving.protocol.api_errors import APIError
from grpo.serving.protocol.chat_request import WITHOUT_EFFECT, ChatRequest
from grpo.serving.protocol.responses_request import ResponsesRequest
from grpo.serving.requests.request_body import parse_object, validated

USER = {"role": "user", "content": "Where is it?"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NEUTRAL: dict[str, Any] = {
    "audio": {},
    "frequency_penalty": 0,
    "function_call": "none",
    "functions": [],
    "logit_bias": {},
    "logprobs": False,
    "metadata": {"colour": "red"},
    "modalities": ["text"],
    "moderation": {},
    "n": 1,
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.0,
    "prompt_cache_key": "a",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "",
    "response_format": {"type": "text"},
    "safety_identifier": "a",
    "service_tier": "flex",
    "stop": [],
    "store": True,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "user": "ann",
    "verbosity": "medium",
}
"""Value without an effect on the words of the reply; it is accepted."""
EFFECTIVE: dict[str, Any] = {
    "logprobs": True,
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "metadata": {"category": "shipping"},
    "n": 2,
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "seed": 3,
    "stop": ["\n"],
    "store": False,
    "temperature": 0.5,
    "tool_choice": "none",
    "tools": [TOOL],
    "top_p": 0.5,
    "user": "ann",
}
"""Value whose effect `test_app` and `test_constraints` show; it is accepted."""
REFUSED: dict[str, Any] = {
    "audio": {"format": "wav", "voice": "alloy"},
    "frequency_penalty": 0.5,
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "logit_bias": {"5": 10},
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni"},
    "presence_penalty": -0.5,
    "reasoning_effort": "high",
    "stream_options": {"include_usage": True},
    "top_logprobs": 2,
    "verbosity": "low",
    "web_search_options": {},
}
"""Value that would change the reply, or is read with another parameter alone; it is 400 with its name."""
MESSAGE_FIELDS: dict[str, Any] = {
    "annotations": [],
    "function_call": {},
    "name": "Ann",
    "parsed": {"a": 1},
    "refusal": "No.",
    "tool_calls": [],
}
PART_FIELDS = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def fields_of(kind: Any) -> list[str]:
    return sorted(kind.__annotations__)


PARAMETERS = fields_of(completion_create_params.CompletionCreateParamsBase)
RESPONSE_PARAMETERS = fields_of(response_create_params.ResponseCreateParamsBase)
MESSAGES: Mapping[str, Any] = {
    "assistant": chat.ChatCompletionAssistantMessageParam,
    "system": chat.ChatCompletionSystemMessageParam,
    "developer": chat.ChatCompletionDeveloperMessageParam,
    "user": chat.ChatCompletionUserMessageParam,
    "tool": chat.ChatCompletionToolMessageParam,
}


def read(**fields: Any) -> ChatRequest:
    return validated(ChatRequest, {"model": "clerk", "messages": [USER], **fields})


def test_every_parameter_of_openais_chat_api_is_in_a_table():
    known = {*NEUTRAL, *EFFECTIVE, *REFUSED, "model", "messages", "stream"}
    assert set(PARAMETERS) <= known
    assert set(WITHOUT_EFFECT) <= set(NEUTRAL)


@pytest.mark.parametrize("name", PARAMETERS)
def test_null_is_absent(name: str):
    if name in ("model", "messages"):
        with pytest.raises(APIError) as error:
            read(**{name: None})
        assert error.value.param == name
    else:
        assert read(**{name: None}) == read()


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_a_value_without_effect_is_accepted(name: str):
    assert read(**{name: NEUTRAL[name]}).to_messages() == read().to_messages()


@pytest.mark.parametrize("name", sorted(EFFECTIVE))
def test_a_value_with_an_effect_is_kept(name: str):
    given = read(**{name: EFFECTIVE[name]})
    assert getattr(given, name) not in (None, getattr(read(), name)) or name == "user"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_value_that_is_missing_is_refused_by_its_name(name: str):
    with pytest.raises(APIError) as error:
        read(**{name: REFUSED[name]})
    assert (error.value.status, error.value.param) == (400, name)
    assert error.value.message.startswith(name)


@pytest.mark.parametrize("role", sorted(MESSAGES))
def test_every_field_of_a_message_is_null_or_has_its_value(role: str):
    """With null, and with what clients append; a reply is what this server or another one has sent."""
    base: dict[str, Any] = {"role": role, "content": "Hello."}
    before: list[dict[str, Any]] = []
    if role == "tool":
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        before = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
        base["tool_call_id"] = "c"
    expected = read(messages=[*before, base, USER]).to_messages()
    for name in {*fields_of(MESSAGES[role]), "annotations", "parsed", "cache_control"} - {*base}:
        for value in (None, MESSAGE_FIELDS.get(name)):
            given = read(messages=[*before, {**base, name: value}, USER])
            assert given.to_messages() == expected, name


def test_a_reply_comes_back_whole_in_every_way_that_clients_append_it():
    """As the server has sent it, as the client's models dump it, parsed, with an index, and with what was refused."""
    sent = {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "Hm.", "reasoning": "Hm.",
            "reasoning_details": [{"text": "Hm."}], "thinking_blocks": [], "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]}  # fmt: skip
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "5"}], "name": "f"}
    expected = read(messages=[USER, sent, result]).to_messages()
    parsed = parsed_chat_completion.ParsedChatCompletionMessage[Any].model_validate(sent)
    for reply in (
        chat.ChatCompletionMessage.model_validate(sent).model_dump(),
        chat.ChatCompletionMessage.model_validate(sent).to_dict(),
        parsed.model_dump(),
        {**sent, "tool_calls": [{**sent["tool_calls"][0], "index": 0}], "function_call": {}, "audio": None},  # type: ignore[index]
    ):
        assert read(messages=[USER, reply, result]).to_messages() == expected
    refusal = {"role": "assistant", "content": None, "refusal": "I cannot."}
    assert read(messages=[USER, refusal, USER]).to_messages()[1].content == "I cannot."


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "messages[0].content[0].type"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "messages[0].content[0].type"),
        ({"type": "file", "file": {"file_id": "x"}}, "messages[0].content[0].type"),
        ({"type": "text"}, "messages[0].content[0].text"),
        ({"type": "text", "text": 5}, "messages[0].content[0].text"),
        ({"type": "text", "text": "x", "colour": "red"}, "messages[0].content[0].colour"),
    ],
)
def test_a_fault_of_a_part_names_its_own_branch(part: dict[str, Any], param: str):
    with pytest.raises(APIError) as error:
        read(messages=[{"role": "user", "content": [part]}])
    assert (error.value.status, error.value.param) == (400, param)
    cached = {"type": "text", "text": "x", **PART_FIELDS, "cache_control": {"type": "ephemeral"}}
    assert read(messages=[{"role": "user", "content": [cached]}]).to_messages()[0].content == "x"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "function", "name": "f", "content": "5"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}}]},
            "messages[0].function_call",
        ),
        ({"colour": "red"}, "colour"),
        ({"stop": 5}, "stop"),
    ],
)
def test_every_fault_names_its_parameter(fields: dict[str, Any], param: str):
    with pytest.raises(APIError) as error:
        read(**fields)
    assert (error.value.status, error.value.param) == (400, param)


ITEMS = {
    "background": True,
    "context_management": [{"type": "compaction"}],
    "conversation": "c",
    "max_tool_calls": 2,
    "moderation": {"model": "omni"},
    "prompt": {"id": "p"},
    "truncation": "auto",
}


@pytest.mark.parametrize("name", sorted({*RESPONSE_PARAMETERS} - {"access_programs", "background_options", "image"}))
def test_null_is_absent_and_what_is_missing_is_refused_in_the_responses_api(name: str):
    body = {"model": "clerk", "input": "Hello"}
    if name not in body:
        assert validated(ResponsesRequest, {**body, name: None}) == validated(ResponsesRequest, body)
    if name in ITEMS:
        with pytest.raises(APIError) as error:
            validated(ResponsesRequest, {**body, name: ITEMS[name]})
        assert error.value.param == name


def test_output_of_the_responses_api_is_input_again():
    """A message with its call, dumped by the client's types, is one assistant message; its result follows."""
    message = responses.ResponseOutputMessage.model_validate(
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Hm.", "annotations": [], "logprobs": []}]}
    )  # fmt: skip
    call = responses.ResponseFunctionToolCall.model_validate(
        {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"}
    )
    result = {"type": "function_call_output", "call_id": "c", "output": "5"}
    request = validated(
        ResponsesRequest,
        {"model": "clerk", "instructions": "Be brief.", "input": [
            {"role": "user", "content": "Hi"}, message.model_dump(), call.model_dump(), result]},
    )  # fmt: skip
    system, user, assistant, tool = request.to_chat().to_messages()
    assert (system.content, user.content, assistant.content, tool.content) == ("Be brief.", "Hi", "Hm.", "5")
    assert [each.name for each in assistant.tool_calls] == ["f"]


def test_a_body_is_an_object():
    with pytest.raises(APIError):
        parse_object(b"[]")
