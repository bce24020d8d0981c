"""Exports of chat programs: each is guessed, its shown replies are read, and what cannot be read says what to do."""

from __future__ import annotations

import json
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpo.config.chats import ChatColumns
from grpo.config.scenarios import ChatSource
from grpo.data_errors import try_call
from grpo.errors import DataError
from grpo.scenarios.guess import guess_source
from grpo.scenarios.readers.exports.chat_exports import read_open_webui
from grpo.scenarios.readers.exports.chat_programs import PROGRAMS
from grpo.scenarios.readers.exports.glaive import read_glaive
from grpo.scenarios.readers.messages.chat_dialects import openai_messages, tools_in_prompt
from grpo.scenarios.readers.messages.written_calls import with_written_calls
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.docs.log_rows import A, U
from tests.grpo.scenarios.chat_samples import ASKED, DONE
from tests.grpo.scenarios.program_samples import (
    HEADER,
    INVOKED,
    OTHER,
    PROGRAM_FILES,
    REFUSED,
    SILLY_TAVERN,
    SWIPED,
    ProgramFile,
    block,
    lm_studio,
    text_part,
)

CALL = {"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": "lost"}


def read_file(path: Path) -> SourceRecord:
    """The only record of a file of `openai_messages`."""
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    return record


def read(tmp_path: Path, document: Any) -> SourceRecord:
    """The record of a document."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    return read_file(path)


def read_lines(tmp_path: Path, *lines: Any) -> SourceRecord:
    """The record of a file of SillyTavern."""
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return read_file(path)


@pytest.mark.parametrize("program", PROGRAM_FILES, ids=lambda program: program.name)
def test_the_file_of_a_program_is_guessed_and_its_shown_reply_is_read(tmp_path: Path, program: ProgramFile):
    """Nothing of another reply, of thoughts and of drafts is in the scenario; calls, results and system texts are."""
    path = tmp_path / program.file
    path.write_text(program.text())
    source = guess_source(path)
    expected = {"path": str(path), **({"records": program.records} if program.records else {})}
    assert (source.kind, source.model_dump(exclude_defaults=True, exclude={"kind"})) == ("openai_messages", expected)
    (record,) = read_records(source)
    assert record.data is not None, record.problem
    assert record.data["user_responses"] == [ASKED]
    assert record.data["expected"] == {"responses": [DONE]}
    assert record.data["world"] == ({"recorded": [CALL]} if program.has_call else {})
    if "<functioncall>" not in program.text():
        assert record.data["context"] == program.context
    assert [tool["name"] for tool in record.data["tools"]] == (["look_up"] if program.has_call else [])
    if OTHER in program.text():
        assert any("other" in reason for reason in record.ignored)


def test_each_program_has_a_file():
    """Each record of a file belongs to one program, and each program has a row or a refusal."""
    names = {program.name for program in PROGRAMS}
    rows = {re.split(r"[,]", program.name)[0] for program in PROGRAM_FILES}
    refused = {"character cards", "KoboldAI", "Google Takeout", "Copilot Chat", "Zed"}
    assert names - rows == {*refused, "BFCL", "BFCL, answers"}
    assert len(REFUSED) == len(refused)


@pytest.mark.parametrize(("name", "document", "reason"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_file_without_speakers_is_refused_with_the_remedy(tmp_path: Path, name: str, document: Any, reason: str):
    """Otherwise its first text would be the user's, or a column would be taken for the chat."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=rf"a\.json:1 {reason}"):
        guess_source(path)


@pytest.mark.parametrize("reason", ["maxPredictedTokensReached", "userStopped"])
def test_a_reply_that_lm_studio_did_not_finish_is_no_reference(tmp_path: Path, reason: str):
    """The turn stays."""
    record = read(tmp_path, lm_studio(block(text_part(DONE), genInfo={"stats": {"stopReason": reason}})))
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]) == ([ASKED], {"responses": []})


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (lm_studio(selected=2), "no version 2 of message 0: it has 2. Correct currentlySelected, or export"),
        (lm_studio(selected=-1), "no version -1 of message 0"),
        (lm_studio({"type": "imageBlock"}), "step imageBlock cannot be read: message 1. Delete it in LM Studio"),
        (lm_studio(block({"type": "file", "name": "a.png"})), "content is not text: part file in message 1"),
        (
            lm_studio(block({"type": "toolCallRequest", "callId": 3, "name": "look_up", "parameters": {}}),
                      block(text_part(DONE))),
            "unanswered tool call: look_up, id 3 has no result before the next message",
        ),
        (
            lm_studio(block({"type": "toolCallRequest", "callId": 3, "name": "look_up", "parameters": {}}),
                      block({"type": "toolCallResult", "callId": 3, "content": '[{"type": "image", "data": ""}]'})),
            "content is not text: part image in the result of a tool",
        ),
    ],
)  # fmt: skip
def test_what_lm_studio_has_and_is_not_text_is_quarantined(tmp_path: Path, document: Any, problem: str):
    """With the number of the message. A call without a result was denied, or the agent was stopped."""
    assert (read(tmp_path, document).problem or "").startswith(problem)


def test_the_common_prompt_of_lm_studio_counts_if_the_chat_has_none_of_its_own(tmp_path: Path):
    """Or if the chat's settings are off."""
    for change in ({"perChatPredictionConfig": {"fields": []}}, {"usePerChatPredictionConfig": False}):
        record = read(tmp_path, {**lm_studio(block(text_part(DONE))), **change})
        assert record.data is not None, record.problem
        assert record.data["context"] == "An older prompt."


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((HEADER, SILLY_TAVERN[2], "{"), "line 3 of the chat cannot be read: broken JSON"),
        ((HEADER, SILLY_TAVERN[2], {**SWIPED, "mes": 5}), "mes of line 3 is not a text: int. Correct it, or delete"),
        ((HEADER, {**SWIPED, "extra": {"image": "a.png"}}), "extra.image of line 2 cannot be read: only text is read"),
        ((HEADER, {"name": "Ann", "mes": "Hi."}), "is_user of line 2 is neither true nor false"),
        ((HEADER, SILLY_TAVERN[2], SWIPED, {**SWIPED, "name": "Ben"}), "several speakers of one role: assistant Desk"),
        (
            (HEADER, SILLY_TAVERN[2], SWIPED, {**SWIPED, "extra": {"type": "narrator"}}),
            "late system message: message 2",
        ),
    ],
)
def test_what_cannot_be_read_of_silly_tavern_names_the_line(tmp_path: Path, lines: tuple[Any, ...], problem: str):
    """And the remedy. A chat of a group has several agents."""
    assert (read_lines(tmp_path, *lines).problem or "").startswith(problem)


def test_a_message_that_is_hidden_from_the_model_is_left_out(tmp_path: Path):
    """It is counted."""
    hidden = {**SWIPED, "is_system": True, "mes": "a comment"}
    record = read_lines(tmp_path, HEADER, SILLY_TAVERN[2], hidden, SWIPED)
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": [DONE]}
    assert "message.is_system: a message that the model did not read" in record.ignored


def test_a_list_of_such_lines_and_chub_s_texts_are_read_too(tmp_path: Path):
    """Chub writes an object with the message."""
    lines = [SILLY_TAVERN[2], INVOKED, {**SWIPED, "mes": {"message": DONE}}]
    record = read(tmp_path, {"messages": lines})
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]) == ([ASKED], {"responses": [DONE]})
    assert record.data["world"] == {"recorded": [CALL]}


@pytest.mark.parametrize("other", [{"mapping": {"a": "b"}}, {"data_visible": 1}, {"user_name": "Ann"}])
def test_a_question_next_to_a_key_of_a_program_is_read_as_before(tmp_path: Path, other: dict[str, Any]):
    """A key of the same name does not suffice."""
    path = tmp_path / "a.jsonl"
    row = {"question": ASKED, "answer": DONE, **other}
    path.write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
    record = next(iter(read_records(guess_source(path))))
    assert record.data is not None, record.problem
    assert record.data["user_responses"] == [ASKED]


def test_rows_with_the_name_of_a_user_are_not_one_chat(tmp_path: Path):
    """The second line has no message."""
    path = tmp_path / "a.jsonl"
    row = {"user_name": "Ann", "messages": [U, A]}
    path.write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
    records = [*read_records(ChatSource(kind="openai_messages", path=str(path)))]
    assert [record.data is not None for record in records] == [True, True]


def test_a_call_of_a_tool_of_chatgpt_is_no_reply(tmp_path: Path):
    """Its text is for the tool."""
    nodes = {
        "u": {"parent": None, "message": {"author": {"role": "user"},
              "content": {"content_type": "text", "parts": ["A"]}}},
        "a": {"parent": "u", "message": {"author": {"role": "assistant"}, "recipient": "dalle.text2im",
              "content": {"content_type": "text", "parts": ['{"prompt": "x"}']}}},
    }  # fmt: skip
    record = read(tmp_path, [{"mapping": nodes, "current_node": "a"}])
    assert (record.problem or "").startswith("a call of dalle.text2im, which ChatGPT ran itself, cannot be read")


def test_the_tree_of_librechat_is_read_like_its_list(tmp_path: Path):
    """Answers are below their messages, and a reply has parts. The newest reply is read."""
    call = {"id": "c1", "name": "look_up", "args": '{"order": "7"}', "output": "lost", "type": "tool_call"}
    parts = [{"type": "think", "think": "7?"}, {"type": "tool_call", "tool_call": call}, {"type": "text", "text": DONE}]
    replies = [
        {"messageId": "a", "parentMessageId": "u", "isCreatedByUser": False, "text": OTHER, "children": []},
        {"messageId": "b", "parentMessageId": "u", "isCreatedByUser": False, "text": "", "content": parts},
    ]
    root = {"messageId": "u", "parentMessageId": "0", "isCreatedByUser": True, "text": ASKED, "children": replies}
    record = read(tmp_path, {"conversationId": "c", "recursive": True, "messagesTree": [root]})
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]) == ([ASKED], {"responses": [DONE]})
    assert record.data["world"] == {"recorded": [CALL]}


@pytest.mark.parametrize("rating", ["Open WebUI", "LibreChat"])
def test_a_reply_that_the_user_rated_as_bad_is_no_reference(tmp_path: Path, rating: str):
    """Both programs store thumbs at the message."""
    (program,) = [program for program in PROGRAM_FILES if program.name == rating]
    content = json.loads(program.text())
    if rating == "Open WebUI":
        content[0]["chat"]["history"]["messages"]["b"]["annotation"] = {"rating": -1}
    else:
        content["messages"][-1]["feedback"] = {"rating": "thumbsDown"}
    record = read(tmp_path, content)
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]) == ([ASKED], {"responses": []})


TWO_CHATS = [
    {"id": f"{chat}{role}", "role": role, "content": f"{role} of {chat}", "sessionId": chat, "createdAt": number}
    for number, (chat, role) in enumerate((chat, role) for chat in "ab" for role in ("user", "assistant"))
]
"""Messages of two chats, as LobeChat exports those of all sessions."""


def test_a_list_of_messages_of_several_chats_is_read_as_rows(tmp_path: Path):
    """Each session is a chat of its own."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"state": {"messages": TWO_CHATS, "sessions": [{"id": "a"}, {"id": "b"}]}}))
    chats = [record.data for record in read_records(guess_source(path)) if record.data is not None]
    assert [(chat["user_responses"], chat["expected"]["responses"]) for chat in chats] == [
        (["user of a"], ["assistant of a"]), (["user of b"], ["assistant of b"]),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["sessionId", "conversation_id", "chat"])
def test_a_record_with_messages_of_several_chats_is_quarantined(tmp_path: Path, name: str):
    """If they were read as one chat, the second user would go on in the first user's chat. Others name none."""
    messages = [{**message, name: message["sessionId"]} for message in TWO_CHATS]
    messages = [
        {key: value for key, value in message.items() if key in ("role", "content", name)} for message in messages
    ]
    assert (read(tmp_path, {"messages": messages}).problem or "").startswith(f"several chats in one list: {name} has")
    numbered = [{"step" if key == name else key: value for key, value in message.items()} for message in messages]
    assert read(tmp_path, {"messages": numbered}).data is not None


def test_what_an_agent_of_claude_code_says_to_its_own_agents_is_left_out(tmp_path: Path):
    """It is marked as a side chain."""
    rows = [("user", ASKED, False), ("user", "a task", True), ("assistant", "done", True), ("assistant", DONE, False)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(
        json.dumps({"sessionId": "s", "isSidechain": side, "type": role, "message": {"role": role, "content": text},
                    "timestamp": f"2026-11-20T09:00:0{number}Z"})
        for number, (role, text, side) in enumerate(rows)
    ))  # fmt: skip
    (record,) = read_records(guess_source(path))
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == ([ASKED], [DONE])


@pytest.mark.parametrize(
    "unit",
    [
        '<details type="a">', '<details type="a"', "<summary>", 'a="', "a", "\n", "\nUSER:", "\nAction:", "Thought:\n",
        "[{'", '[{"', "[f(", "[f(x=1), ", "[f()]", ") ", "<functioncall> {'", "<tool_call>{",
    ],
)  # fmt: skip
def test_texts_of_strangers_are_read_in_time_that_grows_with_their_length(unit: str):
    """A text that repeats a piece 10,000 times takes far less than ten seconds of CPU time.

    Readers whose time grew with the square of the length would take minutes.
    """
    text = unit * 10_000
    began = time.thread_time()
    for asked in ("user", "assistant"):
        nodes = {"u": {"role": "user", "content": ASKED}, "a": {"parentId": "u", "role": asked, "content": text}}
        try_call(partial(read_open_webui, {"history": {"messages": nodes}}))
    try_call(partial(read_glaive, {"system": f"SYSTEM: {text}", "chat": f"USER: {text}"}))
    tools_in_prompt(text)
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": text},
        {"role": "tool", "content": text},
    ]
    try_call(partial(with_written_calls, messages, None))
    try_call(partial(openai_messages, messages, ChatColumns()))
    assert time.thread_time() - began < 10


def next_chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A session of NextChat without messages in its mask. The program writes times in the words of its language."""
    dated = [
        {"id": str(number), "date": "11/20/2026, 9:00:00 AM", **message} for number, message in enumerate(messages)
    ]
    return {"id": "s", "topic": "Orders", "mask": {"context": []}, "messages": dated, **fields}


def test_calls_of_next_chat_are_read_with_their_results(tmp_path: Path):
    """They are in the message with the reply."""
    tools = [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'},
              "content": "lost", "isError": False}]  # fmt: skip
    messages = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": DONE, "tools": tools}]
    record = read(tmp_path, next_chat(*messages, {"role": "user", "content": "Thanks."}))
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]) == ([ASKED, "Thanks."], {"responses": [DONE]})
    assert record.data["world"] == {"recorded": [CALL]}
    messages[1]["tools"] = ["look_up"]
    assert (read(tmp_path, next_chat(*messages)).problem or "").startswith("tools of message 1 are not calls")


def test_messages_from_before_next_chat_cleared_the_context_are_left_out(tmp_path: Path):
    """The model did not read them. They are counted."""
    earlier = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": OTHER}]
    later = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": DONE}]
    record = read(tmp_path, next_chat(*earlier, *later, clearContextIndex=2))
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]) == ([ASKED], {"responses": [DONE]})
    assert "record.messages: messages from before the context was cleared" in record.ignored


def test_the_prompt_of_hugging_chat_is_read_and_its_tools_are_not_left_out(tmp_path: Path):
    """Its first message is an empty system message. Calls are among the updates of a message."""
    messages: list[dict[str, Any]] = [
        {"from": "system", "content": ""}, {"from": "user", "content": ASKED}, {"from": "assistant", "content": DONE},
    ]  # fmt: skip
    record = read(tmp_path, {"preprompt": "Be kind.", "messages": messages})
    assert record.data is not None, record.problem
    assert record.data["context"] == "Be kind."
    messages[2]["updates"] = [{"type": "status"}, {"type": "tool", "subtype": "call", "call": {"name": "look_up"}}]
    problem = "message.updates cannot be read: it has calls or results of tools; message 2"
    assert (read(tmp_path, {"messages": messages}).problem or "").startswith(problem)


def test_files_next_to_the_messages_are_not_left_out(tmp_path: Path):
    """The question may be about them."""
    record = read(tmp_path, {"messages": [U, A], "attachments": [{"name": "a.png"}]})
    assert (record.problem or "").startswith("record.attachments cannot be read: content other than text is not read")


def test_calls_of_plugins_of_librechat_are_not_left_out(tmp_path: Path):
    """Older versions had plugins instead of parts with calls."""
    (program,) = [program for program in PROGRAM_FILES if program.name == "LibreChat"]
    content = json.loads(program.text())
    content["messages"][-1]["plugin"] = {"latest": "look_up", "inputs": [{"plugin": "look_up"}]}
    assert (read(tmp_path, content).problem or "").startswith("calls of plugins, as LibreChat had them first")


def test_forks_of_a_message_of_chatbox_are_counted(tmp_path: Path):
    """The shown one is in the list of messages."""
    (program,) = [program for program in PROGRAM_FILES if program.name == "Chatbox"]
    content = json.loads(program.text())
    content["session:s"]["messageForksHash"] = {"2": {"position": 0, "lists": [{"id": "f", "messages": []}]}}
    assert any("other replies" in reason for reason in read(tmp_path, content).ignored)
