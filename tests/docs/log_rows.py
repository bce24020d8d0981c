"""Rows of the tables of docs/logs.md on records, tickets and guesses, each with samples of what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo.config.scenarios import HelpDesk
from tests.grpo.scenarios.readers.exports.test_help_desks import (
    CHATWOOT,
    FRESHDESK,
    FRESHDESK_ACCOUNT,
    INTERCOM,
    ZENDESK,
)
from tests.grpo.scenarios.test_message_columns import ANSWERED, ASKED, ROWS, chat, desk, minute

U = {"role": "user", "content": ASKED}
A = {"role": "assistant", "content": ANSWERED}
_LOOK_UP = {"name": "look_up", "arguments": '{"order": "7"}'}
_CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": _LOOK_UP}]}
_EXPECTED = [{"name": "look_up", "arguments": {"order": "7"}, "turn": 0}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A record, and what it becomes: fields by their places, or a reason of the quarantine, or what is left out."""

    record: dict[str, Any]
    fields: dict[str, Any] | None = None
    quarantined: str | None = None
    left_out: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """A part of a record, what it becomes, and samples."""

    part: str
    becomes: str
    samples: tuple[Sample, ...]


def _messages(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [U, *messages], **fields}


def _unlearned(**fields: Any) -> Sample:
    return Sample(record=_messages({**A, **fields}, U), fields={"expected.responses": []})


def _quarantined(record: dict[str, Any], reason: str) -> Sample:
    return Sample(record=record, quarantined=reason)


def _left_out(record: dict[str, Any], reason: str) -> Sample:
    return Sample(record=record, left_out=reason, fields={"expected.responses": [ANSWERED]})


_REASON = "message.reasoning: the reasoning before a reply does not belong to a reference"
RECORDS = (
    RecordRow(
        part="tool calls in the last message",
        becomes=(
            "`expected.calls` if the file has demonstrations, as for fine-tuning; left out if it is a log of requests"
        ),
        samples=(
            Sample(record=_messages(_CALL), fields={"expected.calls": _EXPECTED}),
            Sample(
                record={"request": _messages(), "response": {"choices": [{"message": _CALL}]}},
                fields={"expected.calls": None},
                left_out="choice.message: a call that the log ends with, as it does not show that it is right",
            ),
        ),
    ),
    RecordRow(
        part="`function_call`, `functions`, role function",
        becomes="calls, tools and results",
        samples=(
            Sample(
                record=_messages(
                    {"role": "assistant", "content": None, "function_call": _LOOK_UP},
                    {"role": "function", "name": "look_up", "content": "lost"},
                    A,
                    functions=[{"name": "look_up", "description": "Look up.", "parameters": {}}],
                ),
                fields={"world.recorded.0.result": "lost", "tools.0.description": "Look up."},
            ),
        ),
    ),
    RecordRow(
        part="`weight: 0`, `train: false` or 0, `training: false`, `loss: false`, a reply cut off by length or filter",
        becomes="no reference, but the turn stays",
        samples=(
            *(_unlearned(**mark) for mark in ({"weight": 0}, {"train": False}, {"train": 0}, {"training": False})),
            _unlearned(loss=False),
            *(
                Sample(
                    record={"request": _messages(), "response": {"choices": [{"message": A, "finish_reason": reason}]}},
                    fields={"user_responses": [ASKED], "expected.responses": []},
                )
                for reason in ("length", "content_filter")
            ),
        ),
    ),
    RecordRow(
        part="`label: false`, `kto_tag: false`, 0 or -1; a word such as `bad`, `rejected` or `thumbs_down` in one of "
        "them or in `rating`, `feedback`, `thumbs`, `vote`, `verdict`",
        becomes="the agent's last reply is no reference",
        samples=tuple(
            Sample(record=_messages(A, **label), fields={"expected.responses": []})
            for label in (
                *({name: value} for name in ("label", "kto_tag") for value in (False, 0, -1, "bad")),
                *({name: "Thumbs Down"} for name in ("rating", "feedback", "thumbs", "vote", "verdict")),
            )
        ),
    ),
    RecordRow(
        part="`chosen`, `rejected`, `rejected_response`, `rejected_message`",
        becomes="quarantined: read a preference pair as pairs of a reward model",
        samples=tuple(
            _quarantined(_messages(A, **{name: "x"}), f"record.{name} cannot be read: a preference pair")
            for name in ("chosen", "rejected", "rejected_response", "rejected_message")
        ),
    ),
    RecordRow(
        part="`reasoning_content`, `reasoning`, `thinking`, `tool_plan`, `<think>`",
        becomes="left out of the reference",
        samples=(
            *(
                _left_out(_messages({**A, name: "7?"}), _REASON)
                for name in ("reasoning_content", "reasoning", "thinking", "tool_plan")
            ),
            _left_out(_messages({**A, "content": f"<think>7?</think>{ANSWERED}"}), _REASON),
        ),
    ),
    RecordRow(
        part="`refusal`",
        becomes="the text of its message",
        samples=(
            Sample(
                record=_messages({"role": "assistant", "content": None, "refusal": "No."}),
                fields={"expected.responses": ["No."]},
            ),
        ),
    ),
    RecordRow(
        part="`citations`, `annotations`, parts `source-url` and `data-NAME` of AI SDK",
        becomes="left out and counted",
        samples=(
            _left_out(_messages({**A, "citations": ["x"]}), "message.citations: links"),
            _left_out(_messages({**A, "annotations": [{"type": "x"}]}), "message.annotations: links"),
            *(
                _left_out(
                    {"messages": [U, {"role": "assistant", "parts": [part, {"type": "text", "text": ANSWERED}]}]},
                    reason,
                )
                for part, reason in (
                    ({"type": "source-url", "url": "x"}, "message.annotations: links"),
                    ({"type": "data-chart", "data": {"x": 1}}, "message.data-chart: unknown"),
                )
            ),
        ),
    ),
    RecordRow(
        part="`children` below a message",
        becomes="quarantined, because the answers would be lost",
        samples=(
            _quarantined({"messages": [{**U, "children": [A]}]}, "message.children cannot be read: answers below"),
        ),
    ),
    RecordRow(
        part="`name`",
        becomes=(
            "written before the text of a system message; if names show two users or two agents, the chat is "
            "quarantined"
        ),
        samples=(
            Sample(
                record={"messages": [{"role": "system", "content": "Be kind.", "name": "Ann"}, U]},
                fields={"context": "Ann: Be kind."},
            ),
            _quarantined({"messages": [{**U, "name": "Ann"}, {**U, "name": "Ben"}]}, "several speakers of one role"),
            _quarantined(_messages({**A, "name": "x"}, U, {**A, "name": "y"}), "several speakers of one role"),
        ),
    ),
    RecordRow(
        part="a line of a batch's input",
        becomes="its request",
        samples=(
            Sample(
                record={"custom_id": "a", "method": "POST", "url": "/v1", "body": _messages()},
                fields={"id": "a", "user_responses": [ASKED]},
            ),
        ),
    ),
    RecordRow(
        part="a line of a batch's output",
        becomes="a chat, if `requests` names the input; otherwise quarantined, because it has no messages",
        samples=(
            _quarantined({"custom_id": "a", "response": {"body": {"choices": [{"message": A}]}}}, "output of a batch"),
        ),
    ),
    RecordRow(
        part=(
            "a system message after the beginning, pictures, sound, attachments, custom tools, tools that an API runs "
            "itself"
        ),
        becomes="quarantined",
        samples=(
            _quarantined(_messages({"role": "system", "content": "Be brief."}), "late system message"),
            _quarantined({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content is not text"),
            _quarantined(_messages({**A, "audio": {"id": "a"}}), "message.audio cannot be read"),
            _quarantined({"messages": [{**U, "attachments": ["x"]}]}, "message.attachments cannot be read"),
            _quarantined(
                _messages({"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "x"}}]}),
                "tool_call.custom cannot be read",
            ),
            _quarantined(
                _messages(A, tools=[{"type": "web_search"}]), "tool without a name: tool 0 of type web_search"
            ),
        ),
    ),
    RecordRow(
        part="sampling settings, identifiers, unknown fields",
        becomes="left out, counted by `grpo ingest` as `left out of 5 scenarios: …`",
        samples=(
            _left_out(_messages(A, temperature=0.5), "record.temperature: how the reply was sampled"),
            _left_out(_messages(A, user="u1"), "record.user: identifiers and accounting of the API"),
            _left_out(_messages(A, mood="good"), "record.mood: unknown"),
        ),
    ),
)
DESKS: dict[HelpDesk, tuple[str, str, tuple[dict[str, Any], ...]]] = {
    "zendesk": ("a ticket with its `comments`", "the author that is `requester_id`", (ZENDESK,)),
    "intercom": (
        "a conversation with `source` and `conversation_parts`",
        "authors of type `user`, `lead`, `contact` or `visitor`",
        (INTERCOM,),
    ),
    "freshdesk": (
        "a ticket with `conversations`, or `helpdesk_ticket` of an account's export with `notes`",
        "`incoming`",
        (FRESHDESK, FRESHDESK_ACCOUNT),
    ),
    "chatwoot": ("a conversation with its `messages`, or the `payload` of the API", "`message_type` 0", (CHATWOOT,)),
}
"""The words of each help desk's row, and tickets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessRow:
    """What the guess does and when, with rows of a table, and settings that it finds for them, or does not."""

    guess: str
    condition: str
    rows: list[dict[str, Any]]
    settings: dict[str, Any]
    """Settings by their places. None for one that is not set."""


GUESSES = (
    GuessRow(
        guess="takes rows for messages",
        condition=(
            "a column tells who speaks, and a column with the name of a conversation, ticket, thread, session, case or "
            "call has values that repeat, or the column of the speaker has a usual name such as `role`"
        ),
        rows=chat("role", "text", chatId="a"),
        settings={"messages.group_by": "chatId", "messages.speaker": "role"},
    ),
    GuessRow(
        guess="joins questions with answers",
        condition=(
            "a column with the name of a conversation, ticket, thread or session repeats, the order is known, most "
            "conversations ask no question twice, and the rows have no context of their own. Otherwise each row is a "
            "scenario"
        ),
        rows=ROWS["Dify"],
        settings={"messages.text": "query", "messages.reply": "answer", "messages.order": "created_at"},
    ),
    GuessRow(
        guess="orders rows",
        condition=(
            "a column is named as the time or the number of a message (`created_at`, `timestamp`, "
            "`message_created_at`, `turn`), and its values differ within conversations. `due_date` and `response_time` "
            "are not such names. Otherwise a column such as `seq`, `step` or `index` orders them, if it has another "
            "number for each message of a conversation"
        ),
        rows=desk(3, due_date=lambda c, k: f"2026-12-{20 - k}", created_at=minute),
        settings={"messages.order": "created_at"},
    ),
    GuessRow(
        guess="orders rows by two columns",
        condition=(
            "a time of day has its date in another column (`order: [date, time]`), or messages have the same time and "
            "a column has their numbers (`order: [created_at, message_id]`). If there is no such column, messages of "
            "the same time stay in the order of the table, or in the reverse order if the newest messages come first"
        ),
        rows=desk(3, date=lambda c, k: "2026-12-20", time=lambda c, k: f"10:0{k}"),
        settings={"messages.order": ["date", "time"]},
    ),
    GuessRow(
        guess="leaves rows out (`without`)",
        condition=(
            "a column marks some rows of a conversation, but not all, as notes, not public, hidden or deleted. If "
            "the table has a column `isSidechain` (Claude Code), rows with its other marks, such as "
            "`isCompactSummary`, are left out too"
        ),
        rows=ROWS["Crisp"],
        settings={"messages.without": {"type": ["note"]}},
    ),
    GuessRow(
        guess="takes `user` for the agent",
        condition=(
            "the other speakers have names such as `customer`, as in Help Scout, and none has a name of an agent"
        ),
        rows=ROWS["Help Scout"],
        settings={"messages.tags": {"user": "assistant"}},
    ),
    GuessRow(
        guess="takes an answer next to a chat for the reference",
        condition=(
            "it is named `ground_truth`, `expected` or the like, as in data sets for reinforcement learning and "
            "evaluation"
        ),
        rows=[{"messages": [U], "ground_truth": ANSWERED}],
        settings={"names.expected": "ground_truth"},
    ),
    GuessRow(
        guess="takes an answer for calls",
        condition="it is a list of calls, and the record has tools, as in xLAM's data set",
        rows=[{"query": ASKED, "tools": [{"name": "look_up"}], "answers": [{"name": "look_up", "arguments": {}}]}],
        settings={"kind": "input_output", "names.expected": "answers"},
    ),
)
LOG = {
    "messages": [
        {"role": "system", "content": "You run the order desk."},
        {"role": "developer", "content": "Be kind."},
        {"role": "assistant", "content": "Welcome."},
        U,
        _CALL,
        {"role": "tool", "tool_call_id": "c1", "content": "lost"},
        A,
        {"role": "user", "content": "Then I want my money back."},
    ]
}
"""A chat with every part of FIELDS."""
FIELDS: tuple[tuple[str, str, str, Any], ...] = (
    (
        "system and developer text, and a greeting of the agent",
        "`context`",
        "context",
        "You run the order desk.\n\nBe kind.\n\nYou opened the conversation: Welcome.",
    ),
    (
        "the user's turns, `users: script` (the default)",
        "`user_responses`",
        "user_responses",
        [ASKED, "Then I want my money back."],
    ),
    (
        "the user's turns, `users: goal`",
        "`goal`: the first turn, and the others as what the user tells when it is asked",
        "goal",
        f"Reason: {ASKED}\nKnown: Then I want my money back.",
    ),
    ("the agent's replies", "`expected.responses`", "expected.responses", [ANSWERED]),
    (
        "tools; schemas are inferred for tools that were called and not declared",
        "`tools`",
        "tools.0.parameters.properties",
        {"order": {"type": "string"}},
    ),
    (
        "tool calls with their results",
        "`world.recorded`",
        "world.recorded",
        [{**_EXPECTED[0], "result": "lost"}],
    ),
)
"""Part of a log, the field of the scenario in words, its place, and its value for LOG."""
