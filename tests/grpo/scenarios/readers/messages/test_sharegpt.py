"""Chats in ShareGPT's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records


def records(tmp_path: Path, *items: Any) -> list[SourceRecord]:
    """Records of a JSON list of these items."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(items))
    return list(read_records(ChatSource(kind="sharegpt", path=str(path))))


def turn(speaker: str, value: Any) -> dict[str, Any]:
    """One message."""
    return {"from": speaker, "value": value}


def test_a_dump_with_calls_is_a_scenario(tmp_path: Path) -> None:
    """Two calls at once, whose results follow in their order; tools as JSON in a text."""
    calls = [{"name": "look_up", "arguments": {"order": "7"}}, {"name": "look_up", "arguments": '{"order": "8"}'}]
    tools = json.dumps([{"name": "look_up", "description": "Look up.", "parameters": {"type": "object"}}])
    chat = [
        turn("human", "Both?"),
        turn("function_call", json.dumps(calls)),
        turn("observation", "lost"),
        turn("tool", "here"),
        turn("gpt", "One is lost."),
    ]
    (read,) = records(tmp_path, {"conversations": chat, "system": "Be kind.", "tools": tools, "id": 3})
    assert read.data is not None
    assert (read.data["id"], read.data["context"], read.data["user_responses"]) == ("3", "Be kind.", ["Both?"])
    assert [tool["description"] for tool in read.data["tools"]] == ["Look up."]
    recorded = [(call["arguments"], call["result"]) for call in read.data["world"]["recorded"]]
    assert recorded == [({"order": "7"}, "lost"), ({"order": "8"}, "here")]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "look_up", "arguments": {"order": "7"}}</tool_call>',
        '<TOOLCALL>[{"name": "look_up", "arguments": {"order": "7"}}]</TOOLCALL>',
        '[TOOL_CALLS] [{"name": "look_up", "arguments": {"order": "7"}}]',
        '<functioncall> {"name": "look_up", "arguments": {"order": "7"}}',
    ],
)
def test_a_call_that_is_written_in_a_text_is_a_call(tmp_path: Path, text: str) -> None:
    """In the marks of four families. At the end of a chat it is the call to make, and no reply."""
    (read,) = records(tmp_path, {"conversations": [turn("human", "Where is order 7?"), turn("gpt", f"I look. {text}")]})
    assert read.data is not None, read.problem
    call = {"name": "look_up", "arguments": {"order": "7"}, "turn": 0}
    assert read.data["expected"] == {"responses": ["I look."], "calls": [call]}


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"items": []}, "no conversations: the record has items"),
        ({"conversations": {}}, "messages are not a list: dict"),
        ({"conversations": [turn("alien", "x")]}, "unknown role: alien in message 0"),
        ({"conversations": [turn("human", 7)]}, "content is not text: int in message 0"),
        ({"conversations": [turn("human", "x"), turn("function_call", "{")]}, "function call is not JSON: message 1"),
        ({"conversations": [turn("human", "x"), turn("function_call", "7")]}, "tool call without a function name"),
        ({"conversations": [turn("human", "x"), turn("observation", "y")]}, "orphaned tool result: message 1"),
        ({"conversations": [turn("gpt", "x")]}, "no user turn"),
        ({"conversations": [turn("human", "x")], "system": 7}, "system is not a text: int"),
        ({"conversations": [turn("human", "x")], "tools": "{"}, "tools are not JSON"),
    ],
)
def test_a_broken_record_has_its_number_and_reason(tmp_path: Path, item: Any, problem: str) -> None:
    """The record after it is read."""
    broken, good = records(tmp_path, item, {"conversations": [turn("user", "Hi."), turn("assistant", "Hi.")]})
    assert (broken.line, (broken.problem or "")[: len(problem)]) == (1, problem)
    assert good.problem is None


def scenario(tmp_path: Path, item: Any, **settings: Any) -> dict[str, Any]:
    """Fields of the scenario of one record."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps([item]))
    (read,) = read_records(ChatSource.model_validate({"kind": "sharegpt", "path": str(path), **settings}))
    assert read.data is not None, read.problem
    return read.data


CALL = {"name": "look_up", "arguments": {"order": "7"}}
RECORDED = [{**CALL, "turn": 0, "result": "lost"}]


@pytest.mark.parametrize("key", ["conversations", "conversation", "messages", "dialog"])
@pytest.mark.parametrize(("role", "content"), [("from", "value"), ("role", "content"), ("role", "value")])
@pytest.mark.parametrize(
    ("user", "agent", "call", "result"),
    [
        ("human", "gpt", "function_call", "observation"),
        ("user", "assistant", "tool_call", "tool"),
        ("Human", "chatgpt", "tool_call", "function_response"),
        ("prompter", "model", "function_call", "tool_response"),
    ],
)
def test_the_common_dialects_are_read(
    tmp_path: Path, key: str, role: str, content: str, user: str, agent: str, call: str, result: str
) -> None:
    """Names of the list, of its keys and of the speakers, in every combination."""
    texts = [(user, "Where?"), (call, json.dumps(CALL)), (result, "lost"), (agent, "Lost.")]
    fields = scenario(tmp_path, {key: [{role: speaker, content: text} for speaker, text in texts]})
    assert (fields["user_responses"], fields["expected"]["responses"]) == (["Where?"], ["Lost."])
    assert fields["world"]["recorded"] == RECORDED


def test_names_of_keys_and_tags_are_settings(tmp_path: Path) -> None:
    """And a tag may say that a speaker is left out."""
    turns = [
        ("Kunde", "Where?"),
        ("Notiz", "angry"),
        ("Aufruf", json.dumps(CALL)),
        ("Ergebnis", "lost"),
        ("Bot", "Lost."),
    ]
    item = {
        "verlauf": [{"wer": speaker, "was": text} for speaker, text in turns],
        "anweisung": "Be kind.",
        "nr": 7,
        "werkzeuge": [{"name": "look_up", "description": "d"}],
    }
    fields = scenario(
        tmp_path,
        item,
        column="verlauf",
        names={"role": "wer", "content": "was", "system": "anweisung", "id": "nr", "tools": "werkzeuge"},
        tags={"Kunde": "user", "Bot": "assistant", "Aufruf": "call", "Ergebnis": "tool", "Notiz": "ignore"},
    )
    assert (fields["id"], fields["context"], fields["user_responses"]) == ("7", "Be kind.", ["Where?"])
    assert (fields["world"]["recorded"], fields["tools"][0]["description"]) == (RECORDED, "d")


def test_hermes_calls_in_text_are_calls(tmp_path: Path) -> None:
    """Tools in the system prompt, two calls with a text, two results in one message, and a mention in prose."""
    tool = {"type": "function", "function": {"name": "look_up", "description": "Look up.", "parameters": {}}}
    calls = "".join(
        f'<tool_call>\n{{"name": "look_up", "arguments": {{"order": "{k}"}}}}\n</tool_call>\n' for k in (7, 8)
    )
    results = "".join(
        f"<tool_response>\n{part}\n</tool_response>" for part in ('{"name": "look_up", "content": "lost"}', "here")
    )
    turns = [
        ("system", f"Use <tools> [{json.dumps(tool)}] </tools> in <tool_call>."),
        ("human", "Both?"),
        ("gpt", f"<think>two</think>I look.\n{calls}"),
        ("tool", results),
        ("gpt", "I wrote `<tool_call>` twice."),
    ]
    fields = scenario(tmp_path, {"conversations": [turn(*pair) for pair in turns]})
    assert [tool["description"] for tool in fields["tools"]] == ["Look up."]
    recorded = [(call["arguments"]["order"], call["result"]) for call in fields["world"]["recorded"]]
    assert recorded == [("7", "lost"), ("8", "here")]
    assert fields["expected"]["responses"] == ["I look.\nI wrote `<tool_call>` twice."]


@pytest.mark.parametrize("part", ["images", "videos", "audios"])
def test_content_beside_the_text_is_refused(tmp_path: Path, part: str) -> None:
    """LLaMA-Factory's records of pictures, at the record and at a message."""
    human = turn("human", "<image>What?")
    for item in ({"conversations": [human], part: ["a.png"]}, {"conversations": [{**human, part: ["a.png"]}]}):
        (read,) = records(tmp_path, item)
        assert f"{part} cannot be read: content other than text is not read" in (read.problem or "")


def test_unknown_fields_are_counted(tmp_path: Path) -> None:
    """The record is used; a field that is empty says nothing."""
    item = {"conversations": [turn("human", "Hi.")], "source": "web", "model": "m", "score": None}
    (read,) = records(tmp_path, item)
    assert read.problem is None
    assert read.ignored == ("record.source: unknown", "record.model: how the reply was sampled")


def test_settings_that_a_format_does_not_read_are_refused() -> None:
    """A key of another format, and tags where there are no speakers."""
    with pytest.raises(
        ValidationError, match="names has the key instruction, but sharegpt has only the keys role, content"
    ):
        ChatSource(kind="sharegpt", path="x", names={"instruction": "q"})
    with pytest.raises(ValidationError, match="column and tags have no effect with alpaca"):
        ChatSource(kind="alpaca", path="x", tags={"a": "user"})


@pytest.mark.parametrize("pair", [("human", "ai"), ("customer", "agent"), ("Kunde", "Laden")])
def test_pairs_of_a_speaker_and_a_text_are_messages(tmp_path: Path, pair: tuple[str, str]) -> None:
    """As LangChain's tuples are in JSON. Taken for pairs of a question and its answer, the user would say `human`."""
    turns = [[pair[0], "Where is it?"], [pair[1], "Lost."], [pair[0], "Money back!"]]
    tags = {"Kunde": "user", "Laden": "assistant"}
    read = scenario(tmp_path, {"messages": turns}, tags=tags)
    assert (read["user_responses"], read["expected"]["responses"]) == (["Where is it?", "Money back!"], ["Lost."])
    assert scenario(tmp_path, {"messages": [["Who is human?", "You."]]})["user_responses"] == ["Who is human?"]


def test_a_message_without_a_speaker_has_the_tag_null(tmp_path: Path) -> None:
    """An event of the system has an empty role. Without the tag the reason names it."""
    turns = [turn("human", "Where?"), turn("", "Ann has joined."), turn("gpt", "Lost.")]
    read = scenario(tmp_path, {"conversations": turns}, tags={"null": "ignore"})
    assert (read["user_responses"], read["expected"]["responses"]) == (["Where?"], ["Lost."])
    (record,) = records(tmp_path, {"conversations": turns})
    assert (record.problem or "").startswith("unknown role: null in message 1")


def test_a_chat_of_user_and_system_is_told_its_tag(tmp_path: Path) -> None:
    """MultiWOZ calls the agent `SYSTEM`."""
    (record,) = records(tmp_path, {"conversations": [turn("USER", "A hotel."), turn("SYSTEM", "Which area?")]})
    assert (record.problem or "").endswith("If the system is the agent, set tags: {system: assistant}")
