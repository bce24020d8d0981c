"""Exports of which no page names the product: who speaks is found by the values, and nothing is lost in silence."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from grpo.errors import DataError
from grpo.scenarios.guess import guess_source
from grpo.scenarios.readers.speakers import SPEAKERS, speaker_name
from grpo.scenarios.sources import read_records

ASKED, ANSWERED, AGAIN = "Where is order 7?", "Which name?", "Under Marsh."
TURNS = (("user", ASKED), ("assistant", ANSWERED), ("user", AGAIN))


def chat(speaker: str, text: str, user: Any = "user", agent: Any = "assistant", **others: Any) -> list[dict[str, Any]]:
    """Messages with these keys and names of speakers. Dots make objects."""
    rows = []
    for number, (role, words) in enumerate(TURNS):
        row: dict[str, Any] = dict(others)
        for place, value in ((speaker, user if role == "user" else agent), (text, words)):
            *outer, last = place.split(".")
            inner = row
            for key in outer:
                inner = inner.setdefault(key, {})
            inner[last] = value
        rows.append({**row, "id": f"m{number}"})
    return rows


EXCHANGES = [{"query": ASKED, "answer": ANSWERED}, {"query": AGAIN, "answer": ""}]
NESTED: dict[str, Any] = {
    "Rasa": {"sender_id": "a", "events": [{"event": "slot", "name": "x"}, *chat("event", "text", agent="bot")]},
    "Amazon Connect": {"ContactId": "a", "Transcript": chat("ParticipantRole", "Content", "CUSTOMER", "AGENT")},
    "LivePerson": {"info": {}, "messageRecords": chat("sentBy", "messageData.msg.text", "Consumer", "Agent")},
    "Contact Center AI": {
        "entries": chat("role", "text", "CUSTOMER", "AGENT"), "conversation_info": {"categories": [{"x": 1}]}},
    "Discord": {"guild": {}, "messages": chat("author.isBot", "content", user=False, agent=True)},
    "LibreChat": {"title": "t", "messages": chat("isCreatedByUser", "text", user=True, agent=False, sender="x")},
    "Gorgias": {"id": 1, "subject": "s", "messages": chat("from_agent", "body_text", user=False, agent=True)},
    "Chainlit": {
        "steps": [{"type": "run", "output": ""}, *chat("type", "output", "user_message", "assistant_message")]},
    "LangGraph": {"values": {"messages": chat("type", "content", "human", "ai")}, "next": []},
    "LlamaIndex": {"store": {"u1": chat("role", "text")}},
    "a workspace": {"w1": {"messages": chat("role", "content")}},
    "Gradio, pairs": {"chatbot": [[ASKED, ANSWERED], [AGAIN, None]], "flag": ""},
    "Streamlit": chat("role", "content"),
    "chats by id": {"c1": chat("role", "content")},
    "LangChain": chat("type", "data.content", "human", "ai"),
    "pydantic-ai": [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": ASKED}]},
        {"kind": "response", "parts": [{"part_kind": "text", "content": ANSWERED}]},
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": AGAIN}]},
    ],
    "Cohere": {"message": AGAIN, "chat_history": [
        {"role": "USER", "message": ASKED}, {"role": "CHATBOT", "message": ANSWERED}]},
    "Bedrock, invocations": {"modelId": "m", "input": {"inputContentType": "application/json", "inputBodyJson": {
        "messages": [{"role": role, "content": [{"text": text}]} for role, text in TURNS]}}},
    "Vertex AI": {"full_request": json.dumps({"contents": [
        {"role": role.replace("assistant", "model"), "parts": [{"text": text}]} for role, text in TURNS]})},
    "OpenAI, Responses": {"input": chat("role", "content"), "output": [], "instructions": "s"},
    "OpenAI, threads": {"object": "list", "data": [
        {**row, "thread_id": "a", "created_at": 3 - k, "content": [{"type": "text", "text": {"value": row["content"]}}]}
        for k, row in enumerate(chat("role", "content")[::-1])]},
    "Semantic Kernel": {"messages": [
        {"role": role, "items": [{"content_type": "text", "text": text}]} for role, text in TURNS]},
}  # fmt: skip
ROWS: dict[str, list[dict[str, Any]]] = {
    "Dify": [{"conversation_id": "a", **row, "created_at": k} for k, row in enumerate(EXCHANGES)],
    "user_message and bot_response": [
        {"session_id": "a", "turn": k, "user_message": row["query"], "bot_response": row["answer"]}
        for k, row in enumerate(EXCHANGES)
    ],
    "AnythingLLM": [{"thread": "a", "prompt": row["query"], "response": row["answer"], "createdAt": k}
                    for k, row in enumerate(EXCHANGES)],
    "Flowise": chat("role", "content", "userMessage", "apiMessage", chatId="a"),
    "Botpress": chat("direction", "payload.text", "incoming", "outgoing", conversationId="a", type="text"),
    "Bot Framework": chat("from.role", "text", agent="bot", conversation={"id": "a"}),
    "Salesforce": chat("ActorType", "Message", "EndUser", "Bot", ConversationIdentifier="a"),
    "HubSpot": [{"Conversation ID": "a", "Message Direction": row["d"], "Message Text": row["t"]}
                for row in chat("d", "t", "INCOMING", "OUTGOING")],
    "LangChain's table": chat("message.type", "message.data.content", "human", "ai", session_id="a"),
    "a CSV file of pandas": chat("isBot", "text", "False", "True", chatId="a"),
    "Claude Code": chat("message.role", "message.content", sessionId="a", uuid="u"),
    "Crisp": [*chat("from", "content", agent="operator", session_id="a", type="text"),
              {"session_id": "a", "type": "note", "from": "operator", "content": "A bad customer.", "id": "n"}],
}  # fmt: skip


def read_guessed(path: Path) -> tuple[list[str], list[str]]:
    (record,) = [record for record in read_records(guess_source(path)) if record.problem is None]
    assert record.data is not None
    return record.data["user_responses"], record.data.get("expected", {}).get("responses", [])


@pytest.mark.parametrize("document", NESTED.values(), ids=NESTED)
def test_the_list_of_messages_is_found_at_any_place(tmp_path: Path, document: Any) -> None:
    """By the names of users and agents among its values."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    assert read_guessed(path) == ([ASKED, AGAIN], [ANSWERED])


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_rows_of_one_conversation_are_one_chat(tmp_path: Path, rows: list[dict[str, Any]], suffix: str) -> None:
    """Also in CSV with objects as JSON. Read one by one, replies would be questions, and internal notes replies."""
    path = tmp_path / f"a.{suffix}"
    with path.open("w", newline="") as file:
        if suffix == "jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            cells = [
                {key: json.dumps(cell) if isinstance(cell, dict) else cell for key, cell in row.items()} for row in rows
            ]
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            writer.writerows(cells)
    assert read_guessed(path) == ([ASKED, AGAIN], [ANSWERED])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": [{"role": "bot", "content": "Hi.", "time": 2}, {"role": "user", "content": ASKED, "time": 1}]},
         "the newest message comes first, by time"),
        ({"messages": [*chat("role", "content"), {"role": "bot", "content": "x", "public": False}]}, "is not public"),
        ({"messages": [{"role": "user", "content": ASKED, "children": [{"role": "bot"}]}]}, "children"),
        ({"input": ASKED, "output": ANSWERED, "previous_response_id": "r"}, "another response"),
        ({"input": ASKED, "output": [{"type": "web_search_call", "id": "w"}]}, "the API made this call itself"),
        ({"thread_ts": "1", "user": "U1", "text": ASKED}, "several rows have the same thread_ts"),
    ],
)  # fmt: skip
def test_a_chat_that_would_mean_something_else_is_refused(tmp_path: Path, record: dict[str, Any], reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text((json.dumps(record) + "\n") * 2)
    with pytest.raises(DataError, match=reason):
        list(read_records(guess_source(path)))


@pytest.mark.parametrize(
    ("cells", "responses"),
    [
        ({"prompt": ASKED, "response": ANSWERED}, [ANSWERED]),
        ({"messages": json.dumps([{"role": "user", "content": ASKED}]), "response": ANSWERED}, [ANSWERED]),
        ({"conversation": json.dumps([{"role": "user", "content": ASKED}]), "response": json.dumps(
            {"choices": [{"message": {"role": "assistant", "content": ANSWERED}}]})}, [ANSWERED]),
        ({"text": ASKED, "label": "x", "answer": "accept"}, []),
    ],
)  # fmt: skip
def test_a_response_of_a_table_is_the_reference(tmp_path: Path, cells: dict[str, str], responses: list[str]) -> None:
    """And the verdict of an annotator is not."""
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(cells))
        writer.writeheader()
        writer.writerow(cells)
    assert read_guessed(path) == ([ASKED], responses)


def test_a_field_that_is_not_read_is_counted(tmp_path: Path) -> None:
    """A second list of messages, and a text that may be a request."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": chat("role", "content"), "dialog": chat("role", "content"), "body": "x"}))
    (record,) = read_records(guess_source(path))
    assert {"record.dialog: unknown", "record.body: unknown"} <= {*record.ignored}


def test_each_name_of_a_speaker_is_in_the_form_in_which_it_is_looked_up() -> None:
    assert [name for name in SPEAKERS if speaker_name(name) != name] == []
