"""Chats in OpenAI's format."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from openai.types import chat
from openai.types.chat import (
    ChatCompletionContentPartParam,
    ChatCompletionMessage,
    chat_completion_message_function_tool_call,
)
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message import FunctionCall
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.shared_params import FunctionDefinition

from grpo.config.scenarios import ChatSource
from grpo.config.sft import WrittenDemonstrations
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.scenario import Scenario
from grpo.scenarios.readers.messages.openai_fields import (
    CALL,
    CALL_FUNCTION,
    CHOICE,
    MESSAGE,
    REQUEST,
    RESPONSE,
    TEXT_PART,
    TOOL,
    TOOL_FUNCTION,
)
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records

CONTENT = "message.content"
TEXTS = (chat.ChatCompletionContentPartTextParam,)
LOOK_UP = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}
ASKED = {"role": "user", "content": "Where is order 7?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [LOOK_UP]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": '{"state": "lost"}'}
REPLY = {"role": "assistant", "content": [{"type": "text", "text": "It is"}, {"type": "text", "text": "lost."}]}
CUSTOM = {"id": "c2", "type": "custom", "custom": {"name": "run", "input": "ls"}}
LOOK_UP_TOOL = {"type": "function", "function": {"name": "look_up", "description": "Look up.", "parameters": {}}}


def records(tmp_path: Path, *items: Any, name: str = "chats.jsonl") -> list[SourceRecord]:
    """Records of a file with these items, one a line."""
    path = tmp_path / name
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in items))
    return list(read_records(ChatSource(kind="openai_messages", path=str(path))))


def test_a_fine_tuning_record_is_a_scenario(tmp_path: Path) -> None:
    """Developer text, parts of a text, a call with its result, the tools, id and category of the record."""
    messages = [{"role": "developer", "content": "Be kind."}, ASKED, CALLED, RESULT, REPLY]
    record = {"messages": messages, "tools": [LOOK_UP_TOOL], "id": "t1", "metadata": {"category": "delivery"}}
    (read,) = records(tmp_path, record)
    assert read.data is not None
    assert (read.data["id"], read.data["metadata"]["category"], read.data["context"]) == ("t1", "delivery", "Be kind.")
    assert read.data["expected"]["responses"] == ["It islost."]
    assert read.data["world"]["recorded"][0]["result"] == {"state": "lost"}
    assert read.data["tools"] == [
        {"name": "look_up", "description": "Look up.", "parameters": {"type": "object", "properties": {}}}
    ]


def test_a_logged_request_with_its_response_is_a_scenario(tmp_path: Path) -> None:
    """The first choice is the last message; a record without an id is named by its line and digest."""
    response = {"choices": [{"message": REPLY}, {"message": ASKED}]}
    (read,) = records(tmp_path, {"request": {"model": "m", "messages": [ASKED]}, "response": response})
    assert read.data is not None
    assert re.fullmatch("chats-1-[0-9a-f]{6}", read.data["id"])
    assert read.data["expected"]["responses"] == ["It islost."]


def test_a_json_array_and_json_lines_named_json_are_read(tmp_path: Path) -> None:
    """By the first line, whatever the name says."""
    good = {"messages": [ASKED, REPLY]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps([good, good], indent=1))
    assert len(list(read_records(ChatSource(kind="openai_messages", path=str(path))))) == 2
    assert len(records(tmp_path, good, good, good, name="b.json")) == 3


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"messages": "x"}, "messages are not a list: str"),
        ({"words": []}, "no messages: the record has words"),
        ({"messages": ["x"]}, "message is not an object: message 0 is str"),
        ({"messages": [{"role": "owl", "content": "x"}]}, "unknown role: owl in message 0. Known are user"),
        ({"messages": [REPLY]}, "no user turn: "),
        ({"messages": [ASKED, CALLED, REPLY]}, "unanswered tool call: look_up, id c1"),
        ({"messages": [ASKED, {"role": "system", "content": "Now be brief."}]}, "late system message: message 1"),
        (
            {"messages": [{**ASKED, "name": "Ann"}, {**ASKED, "name": "Ben"}]},
            "several speakers of one role: user Ann, Ben",
        ),
        ({"messages": [ASKED, {**REPLY, "weight": 0.5}]}, "weight is not 0 or 1: 0.5 in message 1"),
        ({"messages": [ASKED, {**REPLY, "refusal": "No."}]}, "content and a refusal in one message: message 1"),
        (
            {"messages": [ASKED, {**CALLED, "function_call": {"name": "f"}}]},
            "tool_calls and function_call in one message",
        ),
        ({"messages": [ASKED, {**REPLY, "audio": {"id": "a"}}]}, "message.audio cannot be read: sound is not read"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": [CUSTOM]}]}, "tool_call.custom cannot be read"),
        ({"messages": [ASKED], "tools": [{"type": "web_search"}]}, "tool without a name: tool 0 of type web_search"),
        ({"input": {}, "preferred_output": [REPLY]}, "record.preferred_output cannot be read: a preference pair"),
        (
            {"custom_id": "a", "response": {"status_code": 200, "body": {}}},
            "output of a batch: it has only the replies",
        ),
        ({"messages": [ASKED, RESULT]}, "orphaned tool result: message 1, for id c1"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content is not text: part image_url"),
        ({"messages": [{"role": "user", "content": 7}]}, "content is not text: int in message 0"),
        ({"messages": [{**ASKED, "tool_calls": [LOOK_UP]}]}, "tool call of another role: user"),
        ({"messages": [ASKED, {**CALLED, "tool_calls": [{"id": "c1"}]}]}, "tool call without a function name"),
        ({"messages": [ASKED], "tools": {}}, "tools are not a list: dict"),
        ({"messages": [ASKED], "tools": [LOOK_UP_TOOL, LOOK_UP_TOOL]}, "two tools of one name: look_up"),
        ({"messages": [ASKED], "id": [1]}, "id is not a text: list"),
        ({"messages": [ASKED], "metadata": []}, "metadata is not an object: list"),
        ({"request": {"messages": [ASKED]}, "response": {}}, "no choice in the response"),
        ("[1]", "not an object: list"),
    ],
)
def test_a_broken_record_has_its_line_and_reason(tmp_path: Path, record: Any, problem: str) -> None:
    """The record after it is read."""
    broken, good = records(tmp_path, record, {"messages": [ASKED]})
    assert (broken.line, broken.data) == (1, None)
    assert (broken.problem or "").startswith(problem)
    assert good.problem is None


@pytest.mark.parametrize(
    ("arguments", "problem"), [("{", "arguments are not JSON"), ("[1]", "arguments are not an object: list of look_up")]
)
def test_arguments_that_are_not_an_object_are_a_problem(tmp_path: Path, arguments: str, problem: str) -> None:
    """The reason names the tool and the message."""
    call = {**LOOK_UP, "function": {"name": "look_up", "arguments": arguments}}
    (read,) = records(tmp_path, {"messages": [ASKED, {**CALLED, "tool_calls": [call]}, RESULT]})
    assert (read.problem or "").startswith(problem)
    assert "look_up in message 1" in (read.problem or "")


def test_a_call_without_arguments_is_read(tmp_path: Path) -> None:
    """OpenAI writes them as an empty text; an object is read as it is."""
    for arguments, expected in (("", {}), (None, {}), ({"order": 7}, {"order": 7})):
        call = {**LOOK_UP, "function": {"name": "look_up", "arguments": arguments}}
        (read,) = records(tmp_path, {"messages": [ASKED, {**CALLED, "tool_calls": [call]}, RESULT]})
        assert read.data is not None
        assert read.data["world"]["recorded"][0]["arguments"] == expected


def scenario(tmp_path: Path, record: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Fields of the scenario of a record, and the names of what is left out."""
    (read,) = records(tmp_path, record)
    assert read.data is not None, read.problem
    return read.data, {part.partition(":")[0] for part in read.ignored}


def test_the_call_that_a_record_ends_with_is_expected(tmp_path: Path) -> None:
    """OpenAI's own example of fine-tuning for tools: it answers the second turn of the user."""
    calls = [LOOK_UP, {**LOOK_UP, "id": "c2", "function": {"name": "refund", "arguments": "{}"}}]
    messages = [ASKED, REPLY, ASKED, {"role": "assistant", "tool_calls": calls}]
    fields, _ = scenario(tmp_path, {"messages": messages, "tools": [LOOK_UP_TOOL], "parallel_tool_calls": False})
    assert fields["expected"]["calls"] == [
        {"name": "look_up", "arguments": {"order": "7"}, "turn": 1},
        {"name": "refund", "arguments": {}, "turn": 1},
    ]
    assert (fields["world"], [tool["name"] for tool in fields["tools"]]) == ({}, ["look_up", "refund"])
    assert Scenario.model_validate(fields).expected.states_success


def test_the_call_that_a_log_ends_with_is_left_out(tmp_path: Path) -> None:
    """A log does not show that it is right."""
    response = {"choices": [{"message": CALLED, "finish_reason": "tool_calls"}]}
    fields, left_out = scenario(tmp_path, {"request": {"messages": [ASKED]}, "response": response})
    assert (fields["expected"], left_out) == ({"responses": []}, {"choice.message"})


def test_a_legacy_function_call_is_a_call(tmp_path: Path) -> None:
    """With its result, which names the function, and as the last message."""
    call = {"role": "assistant", "content": None, "function_call": {"name": "look_up", "arguments": '{"order": "7"}'}}
    result = {"role": "function", "name": "look_up", "content": "lost"}
    messages = [ASKED, call, result, REPLY, ASKED, call]
    fields, _ = scenario(tmp_path, {"messages": messages, "functions": [LOOK_UP_TOOL["function"]]})
    assert fields["world"]["recorded"] == [
        {"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": "lost"}
    ]
    assert fields["expected"]["calls"] == [{"name": "look_up", "arguments": {"order": "7"}, "turn": 1}]
    assert fields["tools"][0]["description"] == "Look up."
    (broken,) = records(tmp_path, {"messages": [ASKED, call, {**result, "name": "refund"}, REPLY]})
    assert (broken.problem or "").startswith("orphaned tool result: message 2, for id function refund")


def call(name: str, **arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("field", ["name", "tool_name"], ids=["chat templates", "Ollama"])
def test_results_that_name_their_tool_belong_to_its_calls(tmp_path: Path, field: str) -> None:
    """Two calls of one tool get their results in order, and the result of another tool may come between them."""
    calls = [call("time", city="Rome"), call("heat", city="Rome"), call("time", city="Oslo")]
    said = (("heat", "30"), ("time", "noon"), ("time", "eleven"))
    results = [{"role": "tool", field: name, "content": text} for name, text in said]
    agent = {"role": "assistant", "tool_calls": calls}
    fields, ignored = scenario(tmp_path, {"messages": [ASKED, agent, *results, REPLY]})
    assert [entry["result"] for entry in fields["world"]["recorded"]] == ["noon", 30, "eleven"]
    assert not ignored
    path = tmp_path / "demonstrations.jsonl"
    path.write_text(json.dumps({"messages": [ASKED, agent, *results, REPLY]}))
    (demonstration,) = read_demonstrations(WrittenDemonstrations(kind="jsonl", path=str(path)))
    assert json.loads(demonstration[2].content) == ["noon", 30, "eleven"]


def test_names_of_results_count_only_if_all_are_those_of_calls(tmp_path: Path) -> None:
    """Other names, such as `functions.heat`, leave results in the order of the calls. A second result has no call."""
    agent = {"role": "assistant", "tool_calls": [call("time", city="Rome"), call("heat", city="Rome")]}

    def messages(*names: str | None) -> dict[str, Any]:
        results = [{"role": "tool", "name": name, "content": str(place)} for place, name in enumerate(names)]
        return {"messages": [ASKED, agent, *results, REPLY]}

    for names in (("functions.time", "functions.heat"), ("functions.heat", "time"), (None, "time")):
        fields, _ = scenario(tmp_path, messages(*names))
        assert [entry["result"] for entry in fields["world"]["recorded"]] == [0, 1]
    (read,) = records(tmp_path, messages("heat", "heat"))
    assert read.problem is not None
    assert read.problem.startswith("orphaned tool result: message 3, of the tool heat. Calls that wait for one: time")


def test_a_call_in_the_text_with_a_named_result_is_read(tmp_path: Path) -> None:
    """No call of the message has the name, so that nothing is ordered by it."""
    path = tmp_path / "demonstrations.jsonl"
    written = {"role": "assistant", "content": "wind()"}
    result = {"role": "tool", "name": "wind", "content": "calm"}
    path.write_text(json.dumps({"messages": [ASKED, written, result, REPLY]}))
    (demonstration,) = read_demonstrations(WrittenDemonstrations(kind="jsonl", path=str(path)))
    assert [message.role for message in demonstration] == ["user", "assistant", "tool", "assistant"]


def test_a_turn_of_weight_0_is_no_reference(tmp_path: Path) -> None:
    """The turn stays in the conversation: the user's next turn answers it. A last call of weight 0 is not expected."""
    messages = [ASKED, {"role": "assistant", "content": "Dunno.", "weight": 0}, ASKED, {**REPLY, "weight": 1}]
    fields, left_out = scenario(tmp_path, {"messages": messages})
    assert (fields["expected"], left_out) == ({"responses": ["It islost."]}, {"message.content"})
    assert len(fields["user_responses"]) == 2
    fields, _ = scenario(tmp_path, {"messages": [ASKED, {**CALLED, "weight": 0}]})
    assert fields["expected"] == {"responses": []}


@pytest.mark.parametrize("mark", [{"train": False}, {"training": False}, {"loss": False}, {"train": 0, "weight": 1}])
def test_a_turn_that_other_trainers_mask_is_not_a_reference(tmp_path: Path, mark: dict[str, Any]) -> None:
    """The marks of axolotl and ms-swift. If two marks differ, the turn is not learned."""
    wrong = {"role": "assistant", "content": "Dunno.", **mark}
    fields, left_out = scenario(tmp_path, {"messages": [ASKED, wrong, ASKED, {**REPLY, "train": True, "loss": True}]})
    assert (fields["expected"], left_out) == ({"responses": ["It islost."]}, {"message.content"})


@pytest.mark.parametrize("field", [{"loss": 0.37}, {"loss": 0.0}, {"loss": 0}, {"training": 0}, {"train": "false"}])
def test_a_field_that_is_no_switch_marks_nothing(tmp_path: Path, field: dict[str, Any]) -> None:
    """A logged loss, or a text: the reply stays a reference, and the field is counted as unknown."""
    (read,) = records(tmp_path, {"messages": [ASKED, {**REPLY, **field}]})
    assert read.data is not None, read.problem
    assert read.data["expected"] == {"responses": ["It islost."]}
    assert read.ignored == (f"message.{next(iter(field))}: unknown",)


@pytest.mark.parametrize(
    "label",
    [
        {"label": False}, {"kto_tag": False}, {"label": "False"}, {"kto_tag": 0}, {"label": -1}, {"label": "bad"},
        {"rating": "Thumbs-down"}, {"feedback": "dislike"}, {"verdict": "rejected"},
    ],
)  # fmt: skip
def test_a_reply_that_is_labelled_as_undesired_is_not_a_reference(tmp_path: Path, label: dict[str, Any]) -> None:
    """The labels of KTO. A desired reply, and one with a class as its label, are references."""
    messages = [ASKED, REPLY, ASKED, {"role": "assistant", "content": "Dunno."}]
    fields, left_out = scenario(tmp_path, {"messages": messages, **label})
    assert (fields["expected"]["responses"], left_out) == (["It islost."], {f"record.{next(iter(label))}", CONTENT})
    for kept in ({"label": True}, {"label": 1}, {"label": "billing"}, {"rating": 0}, {"feedback": "good"}):
        fields, _ = scenario(tmp_path, {"messages": messages, **kept})
        assert fields["expected"]["responses"] == ["It islost.", "Dunno."]


def test_a_label_belongs_to_the_last_reply_of_the_agent(tmp_path: Path) -> None:
    """Also if the user speaks last. In a chat without a reply the label is counted as left out."""
    fields, left_out = scenario(tmp_path, {"messages": [ASKED, REPLY, ASKED], "label": False})
    assert (fields["expected"], left_out) == ({"responses": []}, {"record.label", CONTENT})
    (read,) = records(tmp_path, {"messages": [ASKED], "label": False})
    assert read.ignored == ("record.label: the chat has no reply that it could belong to",)


def test_a_key_that_the_settings_name_is_not_a_label(tmp_path: Path) -> None:
    """A completion in the column `label` is the text that it is."""
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "1 - 1?", "label": "0"}\n')
    source = ChatSource(kind="prompt_completion", path=str(path), names={"completion": "label"})
    (read,) = read_records(source)
    assert read.data is not None, read.problem
    assert read.data["expected"] == {"responses": ["0"]}


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"messages": [ASKED, REPLY], "rejected_response": "No."}, "record.rejected_response cannot be read"),
        ({"messages": [ASKED, REPLY], "rejected_message": REPLY}, "record.rejected_message cannot be read"),
        ({"messages": [ASKED, {**REPLY, "train_detail": [{"begin_offset": 0}]}]}, "message.train_detail cannot be"),
        ({"messages": [{**ASKED, "attachments": [{"url": "a.png"}]}, REPLY]}, "message.attachments cannot be read"),
    ],
)
def test_what_makes_another_conversation_is_quarantined(tmp_path: Path, item: dict[str, Any], problem: str) -> None:
    """Rejected replies, spans of a text, and attached files."""
    (broken,) = records(tmp_path, item)
    assert problem in (broken.problem or "")


def test_an_unknown_field_that_is_false_is_counted(tmp_path: Path) -> None:
    """It may say that the reply is wrong."""
    _, left_out = scenario(tmp_path, {"messages": [ASKED, {**REPLY, "correct": False}]})
    assert left_out == {"message.correct"}


@pytest.mark.parametrize(
    "reply",
    [
        {"content": "Lost.", "reasoning_content": "7 is lost"},
        {"content": "Lost.", "reasoning": "7 is lost"},
        {"content": "Lost.", "thinking": "7 is lost"},
        {"content": "<think>7 is lost</think>\n\nLost."},
    ],
)
def test_reasoning_is_no_part_of_a_reference(tmp_path: Path, reply: dict[str, str]) -> None:
    """In each of its spellings, and it is counted."""
    fields, left_out = scenario(tmp_path, {"messages": [ASKED, {"role": "assistant", **reply}]})
    assert (fields["expected"]["responses"], left_out) == (["Lost."], {"message.reasoning"})


def test_a_refusal_is_the_text_of_its_message(tmp_path: Path) -> None:
    """As a field, and as a part."""
    parts = [{"type": "refusal", "refusal": "I cannot."}]
    for reply in ({"content": None, "refusal": "I cannot."}, {"content": parts}):
        fields, _ = scenario(tmp_path, {"messages": [ASKED, {"role": "assistant", **reply}]})
        assert fields["expected"]["responses"] == ["I cannot."]


def test_a_reply_that_was_cut_off_is_no_reference(tmp_path: Path) -> None:
    """By its length, or by a filter."""
    response = {"choices": [{"message": {"role": "assistant", "content": "It is"}, "finish_reason": "length"}]}
    fields, left_out = scenario(tmp_path, {"request": {"messages": [ASKED]}, "response": response})
    assert (fields["expected"]["responses"], "choice.message" in left_out) == ([], True)


def test_the_input_of_a_batch_is_read(tmp_path: Path) -> None:
    """Named by its `custom_id`; with the response beside it the reply is the reference."""
    line = {
        "custom_id": "a7",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [ASKED], "seed": 1},
    }
    fields, left_out = scenario(tmp_path, line)
    assert (fields["id"], fields["user_responses"]) == ("a7", ["Where is order 7?"])
    assert left_out == {"record.method", "record.url", "request.seed"}
    response = {"status_code": 200, "request_id": "r", "body": {"choices": [{"message": REPLY}]}}
    fields, _ = scenario(tmp_path, {**line, "response": response})
    assert fields["expected"]["responses"] == ["It islost."]


def test_fields_that_say_nothing_are_absent(tmp_path: Path) -> None:
    """A reply as `model_dump()` of the package `openai` writes it: null, empty and false fields are not counted."""
    reply = ChatCompletionMessage(role="assistant", content="Lost.").model_dump()
    assert scenario(tmp_path, {"messages": [ASKED, {**reply, "annotations": [], "tool_calls": []}]})[1] == set()


@pytest.mark.parametrize(
    ("table", "types"),
    [
        (
            MESSAGE,
            (
                chat.ChatCompletionSystemMessageParam,
                chat.ChatCompletionDeveloperMessageParam,
                chat.ChatCompletionUserMessageParam,
                chat.ChatCompletionAssistantMessageParam,
                chat.ChatCompletionToolMessageParam,
                chat.ChatCompletionFunctionMessageParam,
                chat.ChatCompletionMessage,
            ),
        ),
        (CALL, (chat.ChatCompletionMessageFunctionToolCallParam, chat.ChatCompletionMessageCustomToolCallParam)),
        (CALL_FUNCTION, (chat_completion_message_function_tool_call.Function, FunctionCall)),
        (TOOL, (chat.ChatCompletionFunctionToolParam, chat.ChatCompletionCustomToolParam)),
        (TOOL_FUNCTION, (FunctionDefinition,)),
        (TEXT_PART, (chat.ChatCompletionContentPartTextParam, chat.ChatCompletionContentPartRefusalParam)),
        (REQUEST, (CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming)),
        (RESPONSE, (chat.ChatCompletion,)),
        (CHOICE, (Choice,)),
    ],
)
def test_every_field_of_openais_types_is_decided(table: dict[str, str], types: tuple[Any, ...]) -> None:
    """Read, left out, or refused: a field that a new version of the package adds fails here."""
    names = {name for kind in types for name in (getattr(kind, "model_fields", None) or get_type_hints(kind))}
    assert names - set(table) == set()


@pytest.mark.parametrize("kind", [t for t in get_args(ChatCompletionContentPartParam) if t not in TEXTS])
def test_every_part_beside_texts_is_refused(tmp_path: Path, kind: Any) -> None:
    """Pictures, sound and files, and whatever a new version adds."""
    (name,) = get_args(get_args(get_type_hints(kind, include_extras=True)["type"])[0])
    (read,) = records(tmp_path, {"messages": [{"role": "user", "content": [{"type": name}]}]})
    assert read.problem == f"content is not text: part {name} in message 0"


TURN = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "It is lost."}]


@pytest.mark.parametrize("key", ["system_prompt", "systemPrompt", "systemMessage", "system_instruction", "systemRole"])
def test_a_system_prompt_next_to_the_messages_is_read(tmp_path: Path, key: str) -> None:
    """Unless the messages begin with one."""
    (record,) = records(tmp_path, {key: "Be kind.", "messages": TURN})
    assert record.data is not None, record.problem
    assert record.data["context"] == "Be kind."
    (record,) = records(tmp_path, {key: "Be kind.", "messages": [{"role": "system", "content": "Be brief."}, *TURN]})
    assert record.data is not None, record.problem
    assert record.data["context"] == "Be brief."
    assert f"record.{key}: unknown" in record.ignored


def test_a_system_prompt_in_an_object_is_not_left_out(tmp_path: Path) -> None:
    """It may be the chat's, so that the settings have to say so. With another system prompt it is not needed."""
    params = {"chatParams": {"temperature": 0.5, "systemMessage": "Be kind."}}
    (record,) = records(tmp_path, {**params, "messages": TURN})
    assert (record.problem or "").startswith("a system prompt at chatParams.systemMessage is not read. If the agent")
    (record,) = records(tmp_path, {**params, "messages": [{"role": "system", "content": "Be brief."}, *TURN]})
    assert record.data is not None, record.problem
    path = tmp_path / "named.jsonl"
    path.write_text(json.dumps({**params, "messages": TURN}))
    names = {"system": "chatParams.systemMessage"}
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path), names=names))
    assert record.data is not None, record.problem
    assert record.data["context"] == "Be kind."
