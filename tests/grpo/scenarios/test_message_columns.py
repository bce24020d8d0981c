"""Exports of which no page names the product: who speaks is found by the values, and nothing is lost in silence."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.config.scenarios import ChatSource
from grpo.errors import DataError
from grpo.scenarios.guess import guess_source
from grpo.scenarios.guess_tables import table_settings
from grpo.scenarios.message_columns import leaves
from grpo.scenarios.readers.messages.speakers import SPEAKERS, speaker_name
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
    "Front": {"_results": chat("is_inbound", "text", user=True, agent=False, body="<p>x</p>")},
    "LangChain, tuples": {"messages": [["human", ASKED], ["ai", ANSWERED], ["human", AGAIN]]},
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
    "Continue": {"sessionId": "s", "title": "t", "history": [
        {"message": {"role": role, "content": text}, "contextItems": []} for role, text in TURNS]},
    "Sunshine Conversations": {"messages": [
        {"author": {"type": role.replace("assistant", "business")}, "content": {"type": "text", "text": text},
         "received": f"2026-11-20T09:0{k}:00Z"} for k, (role, text) in enumerate(TURNS)], "meta": {"hasMore": False}},
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
    "llm, logs": [{"conversation_id": "a", "prompt": row["query"], "response": row["answer"], "system": None,
                   "datetime_utc": f"2026-11-20T09:0{k}:00"} for k, row in enumerate(EXCHANGES)],
    "Flowise": chat("role", "content", "userMessage", "apiMessage", chatId="a"),
    "Botpress": chat("direction", "payload.text", "incoming", "outgoing", conversationId="a", type="text"),
    "Bot Framework": chat("from.role", "text", agent="bot", conversation={"id": "a"}),
    "Salesforce": chat("ActorType", "Message", "EndUser", "Bot", ConversationIdentifier="a"),
    "HubSpot": [{"Conversation ID": "a", "Message Direction": row["d"], "Message Text": row["t"]}
                for row in chat("d", "t", "INCOMING", "OUTGOING")],
    "LangChain's table": chat("message.type", "message.data.content", "human", "ai", session_id="a"),
    "a CSV file of pandas": chat("isBot", "text", "False", "True", chatId="a"),
    "Claude Code": chat("message.role", "message.content", sessionId="a", uuid="u"),
    "iMessage": [{"Chat Session": "Ann", "Message Date": k, **row}
                 for k, row in enumerate(chat("Type", "Text", "Incoming", "Outgoing"))],
    "HubSpot, threads": chat("direction", "text", "INCOMING", "OUTGOING", conversationsThreadId="1"),
    "Help Scout": chat("createdBy.type", "body", "customer", "user", conversationId=1),
    "an event without a speaker": [
        *chat("role", "text", ticket_id="a"), {"ticket_id": "a", "role": "", "text": "", "id": "n"}],
    "Crisp": [*chat("from", "content", agent="operator", session_id="a", type="text"),
              {"session_id": "a", "type": "note", "from": "operator", "content": "A bad customer.", "id": "n"}],
}  # fmt: skip


def read_guessed(path: Path) -> tuple[list[str], list[str]]:
    (record,) = [record for record in read_records(guess_source(path)) if record.problem is None]
    assert record.data is not None
    return record.data["user_responses"], record.data.get("expected", {}).get("responses", [])


@pytest.mark.parametrize("mark", ["is_deleted", "hidden"])
def test_a_row_that_was_deleted_is_left_out(tmp_path: Path, mark: str) -> None:
    """Its text would be a part of the next reply."""
    rows = [{"chat_id": "a", mark: False, **row} for row in chat("role", "content")]
    rows.insert(1, {"chat_id": "a", mark: True, "role": "bot", "content": "gone"})
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_guessed(path) == ([ASKED, AGAIN], [ANSWERED])


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
        ({"messages": [{"role": "bot", "content": "Hi.", "timestamp_ms": 2},
                       {"role": "user", "content": ASKED, "timestamp_ms": 1}]}, "comes first, by timestamp_ms"),
        ({"chosen": "Human: a", "rejected": "Human: b"}, "is a preference pair, and a scenario is one chat"),
        ({"messages": "Ann: Hi."}, "Write the turns of the text as a list of messages"),
        ({"messages": [*chat("role", "content"), {"role": "bot", "content": "x", "public": False}]}, "is not public"),
        ({"messages": [*chat("role", "content"), {"role": "bot", "content": "x", "hidden": True}]}, "hidden is true"),
        ({"messages": [*chat("role", "content"), {"role": "bot", "content": "x", "isDeleted": True}]},
         "the user does not see message 3: isDeleted is true"),
        ({"messages": [*chat("role", "content"), {"role": "bot", "content": "x", "usedTools": [{"tool": "look_up"}]}]},
         "message.usedTools cannot be read: it has calls or results of tools"),
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
        ({"text": ASKED, "label": "x", "answer": "accept", "_input_hash": "1"}, []),
        ({"question": ASKED, "answer": "ignore"}, ["ignore"]),
    ],
)  # fmt: skip
def test_a_response_of_a_table_is_the_reference(tmp_path: Path, cells: dict[str, str], responses: list[str]) -> None:
    """And the verdict of an annotator is not, in a file that Prodigy wrote."""
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


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def desk(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Tickets of three messages and a note. Functions of the ticket and of the message give further columns."""
    return [
        {"ticket_id": c, **{name: cell(c, k) for name, cell in columns.items()}, "author": role, "body": f"{text} {c}"}
        for c in range(count)
        for k, (role, text) in enumerate((*TURNS, ("assistant", "A note.")))
    ]


def minute(c: int, k: int) -> str:
    return f"2026-11-20 {c:02d}:0{k}"


ORDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "due date": ("created_at", {"due_date": lambda c, k: f"2026-12-{20 - k}", "created_at": minute}),
    "duration": ("created_at", {"response_time": lambda c, k: 9 - k, "created_at": minute}),
    "time of the ticket": ("created_at", {"ticket_created_at": lambda c, k: minute(c, 0), "created_at": minute}),
    "the same for all rows": ("comment_created_at", {
        "created_at": lambda c, k: minute(c, 0), "comment_created_at": minute}),
    "only a duration": (None, {"handle_time": lambda c, k: 60 * (k % 2)}),
    "only the day": (None, {"date": lambda c, k: f"2026-11-{10 + c}"}),
    "times of another form": ("created_at", {"created_at": lambda c, k: f"11/{10 + c}/2026 9:0{k} AM"}),
    "number": ("message_index", {"message_index": lambda c, k: k}),
}  # fmt: skip


@pytest.mark.parametrize(("order", "columns"), ORDERS.values(), ids=ORDERS)
def test_rows_are_ordered_by_the_time_of_their_message(order: str | None, columns: dict[str, Any]) -> None:
    """Every other time would shuffle a conversation. One that cannot be read is named by the reader."""
    (settings,) = table_settings([], [leaves(row) for row in desk(3, **columns)])
    assert settings["messages"].get("order") == order


SEEN: dict[str, tuple[dict[str, list[str]], Any]] = {
    "Excel": ({"private": ["TRUE"]}, {"private": lambda c, k: ("FALSE", "TRUE")[k == 3]}),
    "words": ({"private": ["Yes"]}, {"private": lambda c, k: ("No", "Yes")[k == 3]}),
    "only notes": ({"is_internal": ["true"]}, {"is_internal": lambda c, k: (None, True)[k == 3]}),
    "public": ({"public": ["0"]}, {"public": lambda c, k: ("1", "0")[k == 3]}),
    "empty": ({"type": ["note"]}, {"type": lambda c, k: ("", "note")[k == 3]}),
    "two names of notes": ({"type": ["Internal note", "note"]}, {
        "type": lambda c, k: ("reply", ("note", "Internal note")[c % 2])[k == 3]}),
    "customers": ({}, {"kind": lambda c, k: ("business", "private")[c % 2]}),
    "all": ({}, {"private": lambda c, k: True}),
}  # fmt: skip


@pytest.mark.parametrize(("hidden", "columns"), SEEN.values(), ids=SEEN)
def test_only_rows_that_are_marked_as_hidden_are_left_out(hidden: dict[str, list[str]], columns: Any) -> None:
    """What the first rows do not have, such as a channel, stays. What marks whole conversations hides nothing."""
    (settings,) = table_settings([], [leaves(row) for row in desk(4, **columns)])
    assert settings["messages"].get("without", {}) == hidden


SINGLE: dict[str, list[dict[str, Any]]] = {
    "questions of customers": [{"contact_id": k % 3, "question": f"{ASKED} {k}", "answer": ANSWERED} for k in range(9)],
    "questions of customers, with times": [
        {"contact_id": k % 3, "question": f"{ASKED} {k}", "answer": ANSWERED, "created_at": k} for k in range(9)],
    "replies to compare": [
        {"session_id": k // 2, "prompt": f"{ASKED} {k // 2}", "response": f"{k}", "ts": k} for k in range(9)],
    "no order": [{"session_id": k // 2, "prompt": f"{ASKED} {k}", "response": ANSWERED} for k in range(9)],
    "queries of sessions": [{"session_id": k // 2, "query": f"{ASKED} {k}", "intent": "x"} for k in range(9)],
    "classes of accounts": [{"text": f"{ASKED} {k}", "account_type": ("user", "admin")[k % 2]} for k in range(9)],
    "tickets, one row each": [
        {"ticket_id": k, "text": f"{ASKED} {k}", "account_type": ("user", "admin")[k % 2]} for k in range(9)],
    "classes of texts": [{"text": f"{ASKED} {k}", "direction": ("inbound", "outbound")[k % 2]} for k in range(9)],
    "questions on a text": [
        {"thread": k // 2, "context": "x", "question": f"{ASKED} {k}", "answer": ANSWERED, "ts": k} for k in range(9)],
    "inputs and outputs": [{"session_id": k, "input": f"{ASKED} {k}", "output": ANSWERED} for k in range(9)],
    "inputs and outputs of a role": [
        {"thread": k // 2, "role": ("user", "bot")[k % 2], "input": f"{ASKED} {k}", "output": "x"} for k in range(9)],
    "audiences of answers": [
        {"question": f"{ASKED} {k}", "answer": ANSWERED, "content": "x", "audience": ("customer", "agent")[k % 2]}
        for k in range(9)],
}  # fmt: skip


@pytest.mark.parametrize("rows", SINGLE.values(), ids=SINGLE)
def test_a_question_in_each_row_is_a_scenario_a_row(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """Unless rows have one conversation and a known order. Classes are no speakers."""
    records = list(read_records(guess_source(write_csv(tmp_path / "a.csv", rows))))
    assert [len(record.data["user_responses"]) for record in records if record.data is not None] == [1] * 9


def test_a_conversation_is_named_before_what_it_is_part_of(tmp_path: Path) -> None:
    rows = [{"session_id": "s", "case_id": "c", **row} for row in desk(2, created_at=minute)]
    (settings,) = table_settings([], [leaves(row) for row in rows])
    assert settings["messages"]["group_by"] == "ticket_id"


def test_a_table_of_one_side_is_read_by_its_known_names(tmp_path: Path) -> None:
    rows = [{"conversation_id": k // 2, "created_at": k, "role": "customer", "message": f"{k}"} for k in range(4)]
    records = list(read_records(guess_source(write_csv(tmp_path / "a.csv", rows))))
    assert [record.data["user_responses"] for record in records if record.data is not None] == [["0\n1"], ["2\n3"]]


def test_a_preference_pair_of_messages_is_read_as_its_prompt(tmp_path: Path) -> None:
    """The replies are lists of messages, and the question is the text next to them."""
    pair = {name: chat("role", "content") for name in ("chosen", "rejected")}
    pq.write_table(pa.Table.from_pylist([{"prompt": ASKED, **pair}]), tmp_path / "a.parquet")
    (record,) = read_records(guess_source(tmp_path / "a.parquet"))
    assert record.data is not None, record.problem
    assert record.data["user_responses"] == [ASKED]


def test_settings_that_are_not_valid_are_a_candidate_that_fails(tmp_path: Path) -> None:
    """A name of a column may be longer than a setting. A guess ends with a reason and not in a traceback."""
    rows = [{"ticket_id": row["ticket_id"], f"{'x' * 300} role": row["author"], "body": row["body"]} for row in desk(2)]
    with pytest.raises(DataError, match=r"cannot be read as it is: csv: String should have at most 200 characters"):
        guess_source(write_csv(tmp_path / "a.csv", rows))


def test_a_further_speaker_quarantines_its_conversation_only(tmp_path: Path) -> None:
    """The column has a known name, and two sides of it are known. The reason names the word."""
    rows = desk(3, created_at=minute)
    rows[1]["author"] = "supervisor"
    records = list(read_records(guess_source(write_csv(tmp_path / "a.csv", rows))))
    assert [(record.problem or "")[:27] for record in records] == ["unknown speaker: supervisor", "", ""]


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        (["2026-11-20 09:01", "2026-11-20 09:00"], None),
        ([2.5, 0.8], None),
        ([2.5, 0.8, 0.3], None),
        (["2026-11-20 09:02", "2026-11-20 09:01", "2026-11-20 09:00"], "the newest message comes first, by time"),
    ],
)
def test_falling_times_refuse_a_chat_only_if_they_show_its_order(
    tmp_path: Path, times: list[Any], problem: str | None
) -> None:
    """Two clocks may differ, and seconds of typing are no times."""
    path = tmp_path / "a.json"
    messages = [{**message, "time": time} for message, time in zip(chat("role", "content"), times, strict=False)]
    path.write_text(json.dumps([{"messages": messages}]))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    assert (record.problem or "")[:39] == (problem or "")


@pytest.mark.parametrize("speaker", ["source", "type"])
def test_timed_messages_of_no_conversation_are_no_scenarios(tmp_path: Path, speaker: str) -> None:
    """The agent's would be questions. Both settings that the file may need are named, with the order."""
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps([{**row, "timestamp": k} for k, row in enumerate(chat(speaker, "message", agent="agent"))])
    )
    one = rf"set only messages: {{speaker: {speaker}, text: message, order: timestamp}}"
    with pytest.raises(DataError, match=rf"{one}\. If each row .* columns: {{user_responses: message}}"):
        guess_source(path)


@pytest.mark.parametrize(
    ("record", "names"),
    [
        ({"messages": [{"role": "user", "content": ASKED}], "ground_truth": ANSWERED},
         {"input": "messages", "expected": "ground_truth"}),
        ({"prompt": [{"role": "user", "content": ASKED}], "reward_model": {"style": "rule", "ground_truth": ANSWERED}},
         {"input": "prompt", "expected": "reward_model.ground_truth"}),
        ({"input": ASKED, "target": ANSWERED, "messages": [
            {"role": "user", "content": ASKED}, {"role": "assistant", "content": "wrong"}]}, {"expected": "target"}),
    ],
    ids=["Fireworks", "verl", "Inspect"],
)  # fmt: skip
def test_what_stands_next_to_a_chat_as_its_answer_is_the_reference(
    tmp_path: Path, record: dict[str, Any], names: dict[str, str]
) -> None:
    """And not the reply of the model that was evaluated."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record))
    assert getattr(guess_source(path), "names", None) == names
    assert read_guessed(path) == ([ASKED], [ANSWERED])
