"""Tickets of help desks, in the fields that their APIs document, and outputs of batches with their inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource, HelpDeskSource
from grpo.scenarios.guess import guess_source
from grpo.scenarios.ingest import ingest
from grpo.scenarios.sources import content_hash, read_records
from grpo.scenarios.table import read_scenarios

QUESTIONS = ["Where is my parcel?", "Then send another one.\nPlease."]
ANSWERS = ["It was lost.", "It is on its way."]
ZENDESK = {
    "id": 35436, "subject": "Parcel", "description": QUESTIONS[0], "requester_id": 20978392, "assignee_id": 235323,
    "comments": [
        {"id": 1, "type": "Comment", "author_id": 20978392, "body": QUESTIONS[0], "html_body": "<p>…</p>",
         "plain_body": QUESTIONS[0], "public": True, "created_at": "2026-11-20T09:00:00Z"},
        {"id": 2, "type": "Comment", "author_id": 235323, "body": "He is right.", "public": False,
         "created_at": "2026-11-20T09:01:00Z"},
        {"id": 4, "type": "Comment", "author_id": 20978392, "body": QUESTIONS[1], "public": True,
         "created_at": "2026-11-20T09:03:00Z"},
        {"id": 3, "type": "Comment", "author_id": 235323, "body": ANSWERS[0], "public": True,
         "created_at": "2026-11-20T09:02:00Z"},
        {"id": 5, "type": "Comment", "author_id": 235323, "body": ANSWERS[1], "public": True,
         "created_at": "2026-11-20T09:04:00Z"},
    ],
}  # fmt: skip
INTERCOM = {
    "type": "conversation", "id": "147", "created_at": 1795330800,
    "source": {"type": "conversation", "id": "3", "delivered_as": "customer_initiated", "subject": "",
               "body": "<p>Where is my <b>parcel</b>?</p>", "author": {"type": "user", "id": "5f"}},
    "conversation_parts": {"type": "conversation_part.list", "total_count": 5, "conversation_parts": [
        {"type": "conversation_part", "part_type": "assignment", "body": None, "created_at": 1795330801,
         "author": {"type": "bot", "id": "1"}},
        {"type": "conversation_part", "part_type": "note", "body": "<p>He is right.</p>", "created_at": 1795330802,
         "author": {"type": "admin", "id": "2"}},
        {"type": "conversation_part", "part_type": "comment", "body": "<p>It was lost.</p>", "created_at": 1795330803,
         "author": {"type": "admin", "id": "2"}},
        {"type": "conversation_part", "part_type": "comment", "body": "<p>Then send another one.</p><p>Please.</p>",
         "created_at": 1795330804, "author": {"type": "lead", "id": "5f"}},
        {"type": "conversation_part", "part_type": "close", "body": "<p>It is on its way.</p>",
         "created_at": 1795330805, "author": {"type": "admin", "id": "2"}},
    ]},
}  # fmt: skip
_NOTES = [
    {"id": 6, "incoming": False, "private": True, "body_text": "He is right.", "created_at": "2026-11-20T09:01:00Z"},
    {"id": 7, "incoming": False, "private": False, "body": "<div>It was lost.</div>",
     "created_at": "2026-11-20T09:02:00Z"},
    {"id": 8, "incoming": True, "private": False, "body_text": QUESTIONS[1], "body": "<div>…</div>",
     "created_at": "2026-11-20T09:03:00Z"},
    {"id": 9, "incoming": False, "private": False, "body_text": ANSWERS[1], "created_at": "2026-11-20T09:04:00Z"},
]  # fmt: skip
_QUESTION = {"created_at": "2026-11-20T09:00:00Z", "requester_id": 129}
FRESHDESK = {"id": 20, **_QUESTION, "description_text": QUESTIONS[0], "description": "<div>…</div>",
             "conversations": _NOTES}  # fmt: skip
FRESHDESK_ACCOUNT = {"helpdesk_ticket": {"display_id": 20, **_QUESTION, "description": QUESTIONS[0], "notes": _NOTES}}
CHATWOOT = {
    "meta": {"labels": [], "contact": {}},
    "payload": [
        {"id": 1, "conversation_id": 20, "message_type": 0, "content": QUESTIONS[0], "private": False,
         "created_at": 1795330800, "content_type": "text", "sender": {"type": "contact"}},
        {"id": 2, "conversation_id": 20, "message_type": 2, "content": "Assigned to Ann", "private": False,
         "created_at": 1795330801},
        {"id": 3, "conversation_id": 20, "message_type": 1, "content": "He is right.", "private": True,
         "created_at": 1795330802},
        {"id": 4, "conversation_id": 20, "message_type": 1, "content": ANSWERS[0], "private": False,
         "created_at": 1795330803},
        {"id": 5, "conversation_id": 20, "message_type": 0, "content": QUESTIONS[1], "private": False,
         "created_at": 1795330804},
        {"id": 6, "conversation_id": 20, "message_type": 3, "content": ANSWERS[1], "private": False,
         "created_at": 1795330805},
    ],
}  # fmt: skip
CASES = {
    "zendesk lines": ("zendesk", "tickets.jsonl", ZENDESK, "zendesk-35436"),
    "zendesk page": ("zendesk", "tickets.json", {"tickets": [ZENDESK], "count": 1}, "zendesk-35436"),
    "intercom lines": ("intercom", "chats.jsonl", INTERCOM, "intercom-147"),
    "intercom page": (
        "intercom", "chats.json", {"type": "conversation.list", "conversations": [INTERCOM]}, "intercom-147",
    ),
    "intercom list": ("intercom", "chats.json", {"type": "list", "data": [INTERCOM]}, "intercom-147"),
    "freshdesk ticket": ("freshdesk", "tickets.json", [FRESHDESK], "freshdesk-20"),
    "freshdesk account": ("freshdesk", "Tickets0.json", [FRESHDESK_ACCOUNT], "freshdesk-20"),
    "chatwoot messages": ("chatwoot", "messages.json", CHATWOOT, "chatwoot-20"),
    "chatwoot conversations": (
        "chatwoot", "chats.json",
        {"data": {"meta": {}, "payload": [{"id": 20, "inbox_id": 1, "messages": CHATWOOT["payload"]}]}}, "chatwoot-20",
    ),
}  # fmt: skip


def _ingested(tmp_path: Path, source: Any) -> tuple[list[Any], Any]:
    tables = tmp_path / "scenarios.parquet", tmp_path / "quarantine.parquet"
    counts = ingest((source,), *tables, max_quarantined_fraction=1.0)
    return list(read_scenarios(tables[0])), counts


@pytest.mark.parametrize(("kind", "name", "content", "identity"), CASES.values(), ids=CASES)
def test_an_export_of_a_help_desk_is_guessed_and_read(
    tmp_path: Path, kind: str, name: str, content: Any, identity: str
):
    """Two questions and two answers in the order of their times; the note inside is left out and counted."""
    path = tmp_path / name
    path.write_text(json.dumps(content), encoding="utf-8")
    source = guess_source(path)
    assert source == HelpDeskSource(kind=kind, path=str(path))
    [scenario], counts = _ingested(tmp_path, source)
    assert (scenario.id, list(scenario.user_responses)) == (identity, QUESTIONS)
    assert [response.strip() for response in scenario.expected.responses] == ANSWERS
    assert sum("an internal note" in reason for reason in counts.sources[0].left_out) == 1


FILES = [{"name": "a.png"}]
SILENT = {
    "zendesk": {**ZENDESK, "comments": [*ZENDESK["comments"], {"author_id": 20978392, "attachments": FILES}]},
    "intercom": {
        **INTERCOM,
        "conversation_parts": [
            {"part_type": "comment", "body": None, "attachments": FILES, "author": {"type": "user"}}
        ],
    },
    "freshdesk": {**FRESHDESK, "conversations": [*_NOTES, {"incoming": True, "body_text": "", "attachments": FILES}]},
    "chatwoot": {"id": 20, "messages": [*CHATWOOT["payload"], {"message_type": 0, "attachments": FILES}]},
}


@pytest.mark.parametrize(("kind", "ticket"), SILENT.items(), ids=SILENT)
def test_a_message_that_is_only_a_picture_is_not_left_out(tmp_path: Path, kind: Any, ticket: dict[str, Any]):
    """Without it the agent's two replies would be one. A picture next to a text is counted, and so is an empty text."""
    path = tmp_path / "tickets.jsonl"
    path.write_text(json.dumps(ticket) + "\n", encoding="utf-8")
    [record] = read_records(HelpDeskSource(kind=kind, path=str(path)))
    assert record.problem == "content other than text is not read: a message has only attachments"
    text = json.dumps(ticket).replace(
        '"attachments"', '"body_text": "See.", "body": "See.", "content": "See.", "attachments"'
    )
    path.write_text(text + "\n", encoding="utf-8")
    [record] = read_records(HelpDeskSource(kind=kind, path=str(path)))
    assert record.problem is None
    assert "attachments: content other than text is not read" in record.ignored


@pytest.mark.parametrize(
    ("kind", "ticket"),
    [
        ("freshdesk", {**FRESHDESK, "conversations": [*_NOTES, {"incoming": True, "body": "<img src='a.png'>"}]}),
        ("zendesk", {**ZENDESK, "comments": [*ZENDESK["comments"], {"author_id": 1, "html_body": "<div><IMG></div>"}]}),
    ],
)
def test_a_picture_in_html_is_not_left_out(tmp_path: Path, kind: Any, ticket: dict[str, Any]):
    """As an editor of a help desk inserts it, without an attachment."""
    path = tmp_path / "tickets.jsonl"
    path.write_text(json.dumps(ticket) + "\n", encoding="utf-8")
    [record] = read_records(HelpDeskSource(kind=kind, path=str(path)))
    assert record.problem == "content other than text is not read: a message has only attachments"


def test_an_agent_in_copy_is_an_agent(tmp_path: Path):
    """Zendesk lists agents who follow a ticket, too."""
    path = tmp_path / "tickets.jsonl"
    ticket = {**ZENDESK, "email_cc_ids": [235323], "collaborator_ids": [235323]}
    path.write_text(json.dumps(ticket) + "\n", encoding="utf-8")
    [record] = read_records(HelpDeskSource(kind="zendesk", path=str(path)))
    assert record.problem is None


def test_a_deleted_message_of_chatwoot_is_left_out(tmp_path: Path):
    """Its text was replaced by one that says so."""
    deleted = {"message_type": 0, "content": "This message was deleted", "content_attributes": {"deleted": True}}
    path = tmp_path / "tickets.jsonl"
    path.write_text(json.dumps({"id": 20, "messages": [*CHATWOOT["payload"], deleted]}) + "\n", encoding="utf-8")
    [record] = read_records(HelpDeskSource(kind="chatwoot", path=str(path)))
    assert record.data is not None
    assert record.data["user_responses"] == QUESTIONS
    assert "message: deleted" in record.ignored


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        (
            "zendesk",
            {**ZENDESK, "email_cc_ids": [7], "comments": [*ZENDESK["comments"], {"author_id": 7, "body": "Hi."}]},
            "a third speaker: author 7 is in copy",
        ),
        ("zendesk", {**ZENDESK, "comments": None}, "no comments: the record has id, subject"),
        ("zendesk", {**ZENDESK, "requester_id": None}, "no requester_id"),
        (
            "intercom",
            {**INTERCOM, "source": {"body": "Hi.", "author": {"type": "ghost"}}},
            "unknown author: type ghost",
        ),
        ("chatwoot", {"id": 1, "messages": [{"message_type": 9}]}, "unknown message_type: 9"),
        ("freshdesk", {**FRESHDESK, "conversations": ["x"]}, "an entry that is not an object: str"),
        ("freshdesk", {**FRESHDESK, "id": None}, "no id"),
    ],
)
def test_a_ticket_that_cannot_be_read_has_its_reason(tmp_path: Path, kind: Any, content: Any, reason: str):
    """One record each, with a problem."""
    path = tmp_path / "tickets.jsonl"
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    [record] = read_records(HelpDeskSource(kind=kind, path=str(path)))
    assert record.problem is not None
    assert reason in record.problem


def _reply(text: str) -> dict[str, Any]:
    return {"status_code": 200, "body": {"choices": [{"message": {"role": "assistant", "content": text}}]}}


def test_a_reply_to_one_of_two_requests_is_quarantined(tmp_path: Path):
    """Inputs that were put together may count from 1 each. The same request twice is no doubt."""
    inputs, outputs = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked = (("r-1", "When do you open?"), ("r-1", "When do you close?"), ("r-2", "Why?"), ("r-2", "Why?"))
    requests = [{"custom_id": name, "body": {"messages": [{"role": "user", "content": text}]}} for name, text in asked]
    inputs.write_text("".join(json.dumps(line) + "\n" for line in requests))
    replies = [{"custom_id": name, "response": _reply("At six.")} for name in ("r-1", "r-2")]
    outputs.write_text("".join(json.dumps(line) + "\n" for line in replies))
    scenarios, counts = _ingested(tmp_path, ChatSource(kind="openai_messages", path=str(outputs), requests=str(inputs)))
    assert [scenario.id for scenario in scenarios] == ["r-2"]
    assert set(counts.reasons) == {"reply to one of several requests"}


def test_the_output_of_a_batch_is_joined_with_its_input(tmp_path: Path):
    """By `custom_id`, in any order; a request that failed and a reply without one are quarantined."""
    inputs, outputs = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "m", "messages": [{"role": "user", "content": text}]}}
        for name, text in (("a", "When do you open?"), ("b", "When do you close?"), ("c", "Why?"))
    ]  # fmt: skip
    inputs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    failed = {"response": None, "error": {"code": "batch_expired"}}
    replies = [
        {"id": "r2", "custom_id": "b", "response": _reply("At six."), "error": None},
        {"id": "r1", "custom_id": "a", "response": _reply("At nine."), "error": None},
        {"id": "r3", "custom_id": "c", **failed},
        {"id": "r4", "custom_id": "d", "response": _reply("At ten."), "error": None},
    ]
    outputs.write_text("".join(json.dumps(line) + "\n" for line in replies))
    source = ChatSource(kind="openai_messages", path=str(outputs), requests=str(inputs))
    scenarios, counts = _ingested(tmp_path, source)
    pairs = {scenario.id: (scenario.user_responses[0], scenario.expected.responses[0]) for scenario in scenarios}
    assert pairs == {"a": ("When do you open?", "At nine."), "b": ("When do you close?", "At six.")}
    assert set(counts.reasons) == {"failed request", "reply without a request"}
    before = content_hash([source])
    inputs.write_text(inputs.read_text().replace("open", "begin"))
    assert content_hash([source]) != before


def _message(text: str) -> dict[str, Any]:
    """A reply in the results of a batch of Anthropic."""
    message = {"role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    return {"type": "succeeded", "message": message}


def test_a_batch_of_anthropic_is_joined_with_its_requests(tmp_path: Path):
    """`params` are the request, and `result.message` is the reply. The requests are chats without a reply."""
    inputs, outputs = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked = {"model": "m", "system": "Be brief.", "messages": [{"role": "user", "content": "When do you open?"}]}
    inputs.write_text("".join(json.dumps({"custom_id": name, "params": asked}) + "\n" for name in "ab"))
    replies = [{"custom_id": "a", "result": _message("At nine.")}, {"custom_id": "b", "result": {"type": "expired"}}]
    outputs.write_text("".join(json.dumps(line) + "\n" for line in replies))
    first, failed = read_records(ChatSource(kind="openai_messages", path=str(outputs), requests=str(inputs)))
    assert first.data is not None, first.problem
    assert (first.data["context"], first.data["expected"]["responses"]) == ("Be brief.", ["At nine."])
    assert (failed.problem or "").startswith('failed request: {"type": "expired"}')
    unanswered = list(read_records(ChatSource(kind="openai_messages", path=str(inputs))))
    assert [record.data and record.data["user_responses"] for record in unanswered] == [["When do you open?"]] * 2


@pytest.mark.parametrize("reply", [{"response": _reply("At nine.")}, {"result": _message("At nine.")}])
def test_the_output_of_a_batch_alone_says_what_is_missing(tmp_path: Path, reply: dict[str, Any]):
    """It has the replies, and no messages."""
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps({"custom_id": "a", **reply}) + "\n")
    [record] = read_records(ChatSource(kind="openai_messages", path=str(path)))
    assert record.problem == ("output of a batch: it has only the replies. Name the batch's input file in requests")
