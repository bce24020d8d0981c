"""Guess the settings of a table from its columns: scenarios, chats, messages, or questions with answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from grpo.config.scenarios import TraceKind
from grpo.data_errors import excerpt
from grpo.scenarios.message_columns import (
    are_messages,
    continues,
    find_exchange,
    find_group,
    find_hidden,
    find_messages,
    find_side,
    find_verdicts,
    has_list_of_texts,
    leaves,
    repeats,
)
from grpo.scenarios.message_order import Row, find_order, folded
from grpo.scenarios.readers.exports.help_desks import PAGES
from grpo.scenarios.readers.files.places import parsed
from grpo.scenarios.readers.messages.logged_requests import LISTS
from grpo.scenarios.readers.traces.exchanges import EXPECTED, are_calls
from grpo.scenarios.readers.traces.langfuse import NO_MESSAGES, SESSIONS_COLUMN

EARLIER = ("history", "chat_history", "context_messages")
"""Lists with the earlier messages of a chat. The question and the reply are elsewhere in the record."""
_ASKED = ("instruction", "question", "query", "prompt")
"""Names of what a user asks. If a row has one of them, it is an exchange and not one message, even if a column
names a speaker."""
QUESTION_NAMES = (*_ASKED, "utterance", "text", "message", "body", "turns")
_LAST_NAMES = ("description", "ticket_description", "subject")
ANSWER_NAMES = ("output", "answer", "response", "reply", "completion", "generation")
_REFERENCES = ("ground_truth", "reference_answer", "reference_output", "expected_output", "correct_answer")
"""Names of what the reply should be. Next to one of them, an answer is only what some model has replied."""
_ROLES = ("role", "from", "speaker", "sender", "author", "sender_type", "author_role")
_CONTENTS = ("content", "value", "text", "utterance", "message", "body")
_CONTEXTS = ("system", "system_prompt", "preamble", "context")
_CATEGORIES = ("category", "topic", "intent", "label")
_IDS = ("id", "ticket", "ticket_id")
_CHOICES = ("choices", "options", "endings", "alternatives", "candidates")
_LETTERED = re.compile(r"(?:option|choice|ending|sol|op)[ _]?[a-e0-5]", re.IGNORECASE)
"""Columns of the choices of a question, if each has its own: option_a, choice1, opa."""
_KEYS = {
    folded(name)
    for name in (
        *_REFERENCES,
        *ANSWER_NAMES,
        *EXPECTED,
        "answer_key",
        "answer_index",
        "answer_idx",
        "correct",
        "correct_option",
        "gold",
        "cop",
    )
}
_KEY = re.compile(r"[A-Fa-f]|\d")
"""The letter or the number of a choice."""


def chat_kinds(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kinds of chats that records with these keys may be, each with its settings."""
    if "comments" in names and "requester_id" in names:
        yield "zendesk", {}
    if {"conversation_parts", "source"} <= {*names}:
        yield "intercom", {}
    if {"helpdesk_ticket", "description_text"} & {*names}:
        yield "freshdesk", {}
    if {"payload", "meta"} & {*names} or ({"messages", "inbox_id"} <= {*names}):
        yield "chatwoot", {}
    if "run_type" in names:
        yield "langsmith", {}
    if {"span_attributes", "root_span_id"} <= {*names}:
        yield "braintrust", {}
    if {"info", "data"} <= {*names} or "mlflow.spanInputs" in names:
        yield "mlflow", {}
    if "op_name" in names:
        yield "weave", {}
    if any(name in ("attributes", "resourceSpans") or name.startswith("attributes.") for name in names):
        yield "openinference", {}
    if {"traces", "observations", "trace_id", "traceId", "sessionId", "session_id"} & {*names}:
        yield "langfuse", {}
    if "conversations" in names:
        yield "sharegpt", {}
    if {"message_tree_id", "prompt"} <= {*names}:
        yield "openai_messages", {}
    if {*LISTS, "request", "request_body", "body", "mapping", "contents", "custom_id"} & {*names}:
        yield "openai_messages", {}
    if "instruction" in names or ("history" in names and first_name(names, QUESTION_NAMES)):
        others = {
            "instruction": first_name(names, QUESTION_NAMES),
            "output": first_name(names, ANSWER_NAMES),
            "input": first_name(names, ("input", "context")),
        }
        renamed = {key: name for key, name in others.items() if name is not None and name != key}
        yield "alpaca", {"names": renamed} if renamed else {}
    if "prompt" in names:
        answer = first_name(names, ("completion", *ANSWER_NAMES))
        yield "prompt_completion", {} if answer in (None, "completion") else {"names": {"completion": answer}}
    yield from ((desk, {}) for desk, keys in PAGES.items() if {*keys} & {*names})


def called_questions(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kind of rows with a question, tools, and the calls that answer it, as xLAM's data set has them.

    {"query": "Where is order 7?", "tools": "[…]", "answers": "[{\"name\": \"look_up\", \"arguments\": …}]"}
    """
    for row in rows:
        question = first_name([name for name in row if isinstance(row[name], str)], (*QUESTION_NAMES, "input"))
        others = [name for name in row if name not in (question, "tools")]
        calls = next((name for name in others if are_calls(parsed(row[name]))), None)
        if question and calls and isinstance(parsed(row.get("tools")), list):
            names = {"input": question, "expected": calls}
            yield "input_output", {"names": {field: name for field, name in names.items() if field != name}}
            return


def trace_kinds(names: Sequence[str]) -> Iterator[str]:
    """Kinds of traces that a table with these columns may be. Many tables have a column of a session and no traces."""
    for kind, _ in chat_kinds(names):
        is_langfuse = "input" in names and bool({"traceId", "trace_id", "sessionId"} & {*names})
        if kind in get_args(TraceKind) and (kind != "langfuse" or is_langfuse):
            yield kind


def table_settings(
    names: Sequence[str], rows: Sequence[Row], chats: Iterable[tuple[str, dict[str, Any]]] | None = None
) -> Iterator[dict[str, Any]]:
    """Settings of tables with these columns. `chats` are the kinds of chats that a row may be, and None if the format
    has kinds of its own for them.

    If the rows are messages, or if several rows belong to one conversation, they are not read one by one. Rows with a
    question and its answer are scenarios of their own, unless several of them have the same conversation, their order
    is known and no context of their own is lost.
    """
    if "id" in names and any(name in names for name in ("user_responses", "goal", "user_0")):
        yield {}
    names = [name for name in names if name not in find_verdicts(rows)]
    group, columns, exchange = find_group(rows), find_messages(rows), find_exchange(rows)
    order = {"order": place} if group is not None and (place := find_order(rows, group)) is not None else {}
    columns = columns or find_side(rows)
    is_exchange = exchange is not None or bool(
        first_name(names, (*_ASKED, "input")) and first_name(names, ANSWER_NAMES)
    )
    filled = [name for name in names if any(row.get(name) not in (None, "") for row in rows)]
    is_turn = exchange is not None and order and first_name(filled, _CONTEXTS) is None
    has_messages = (
        group is not None and columns is not None and not is_exchange and (repeats(rows, group) or are_messages(rows))
    )
    if has_messages and columns is not None:
        tags = {"tags": columns.tags} if columns.tags else {}
        without = {"without": hidden} if (hidden := find_hidden(rows, group)) else {}
        yield {
            "messages": {
                "group_by": group, "speaker": columns.speaker, "text": columns.text, **order, **without, **tags
            }
        }  # fmt: skip
    elif exchange is not None and is_turn and continues(rows, group, exchange[0]):
        yield {"messages": {"group_by": group, "text": exchange[0], "reply": exchange[1], **order}}
        return
    for kind, more in chats or ():
        yield {"chat": {"kind": kind, **more}}
    if chats is not None and "input" in names and first_name(names, (*EXPECTED, "output")):
        expected = first_name(names, EXPECTED)
        renamed = {} if expected in (None, "expected") else {"expected": expected}
        yield {"chat": {"kind": "input_output", **({"names": renamed} if renamed else {})}}
    is_part = are_messages(rows) or (
        first_name(names, _ASKED) is None and (repeats(rows, group) or has_list_of_texts(rows))
    )
    if has_messages or (is_part and not is_exchange):
        return
    question = first_name(names, (*QUESTION_NAMES, *_LAST_NAMES))
    if question and not {*EARLIER} & {*names}:
        fields: Mapping[str, str | None] = {
            "id": first_name(names, _IDS),
            "user_responses": question,
            "context": first_name(names, _CONTEXTS),
            "tools": first_name(names, ("tools",)),
            "expected.responses": first_name(names, _REFERENCES) or first_name(names, ANSWER_NAMES),
            "metadata.category": first_name(names, _CATEGORIES),
        }
        yield {"columns": {field: column for field, column in fields.items() if column is not None}}


def find_choices(rows: Sequence[Row]) -> list[str]:
    """Columns of the choices among which a letter or a number names the answer. Empty for other tables.

    {"question": "Capital of France?", "choices": ["Rome", "Paris"], "answer": 1} → ["choices"]
    """
    row = rows[0] if rows else {}
    lists = [place for place in row if any(folded(name) in _CHOICES for name in place.split("."))]
    lists = [place for place in lists if isinstance(items := parsed(row[place]), list) and len(items) > 1]
    columns = lists or [name for name in row if _LETTERED.fullmatch(name)]
    keys = [name for name in map(str, (row[name] for name in row if folded(name) in _KEYS)) if _KEY.fullmatch(name)]
    return columns if keys and (lists or len(columns) > 1) else []


def unknown_names(path: Path, names: Sequence[str], rows: Sequence[Row]) -> str:
    """Why no settings could be guessed from these keys or columns, and what to set."""
    if {"conversation_a", "conversation_b"} <= {*names}:
        return (
            f"{path}: each record has two chats to compare, and a scenario has only one. To read the first chat of "
            "each record, write kind: openai_messages and column: conversation_a"
        )
    if {"chosen", "rejected"} <= {*names}:
        return (
            f"{path}: each record is a preference pair, and a scenario is one chat. Train on pairs with dpo, see "
            "docs/guide.md, or train a reward model on them, see docs/internals/rewards.md"
        )
    if {"parent_id", "message_id"} <= {*names}:
        return (
            f"{path}: each row is one message of a tree with several replies to one message. Read the file of trees "
            "instead, with kind: openai_messages"
        )
    shown = excerpt(", ".join(names), 300) or "nothing"
    if any(SESSIONS_COLUMN in row for row in rows):
        return f"{path}: {NO_MESSAGES}"
    group, columns = find_group(rows), find_messages(rows)
    if group is None and are_messages(rows):
        speaker, text = ("…", "…") if columns is None else (columns.speaker, columns.text)
        tags = f", tags: {json.dumps(columns.tags)}" if columns is not None and columns.tags else ""
        order = f", order: {place}" if (place := find_order(rows, None)) is not None else ""
        who = f"speaker: {speaker}, text: {text}{order}{tags}"
        return (
            f"{path}: each row is one message, and no column with a known name tells to which conversation it "
            f"belongs. It has {shown}. Name that column in messages.group_by. If the file is one conversation, set "
            f"only messages: {{{who}}}. If each row is a scenario of its own, set columns: {{user_responses: {text}}}, "
            "see docs/logs.md"
        )
    if repeats(rows, group):
        return (
            f"{path}: several rows have the same {group}, and no column tells in known words who speaks. It has "
            f"{shown}. Set messages: {{group_by: {group}, speaker: …, text: …, tags: {{…: user, …: assistant}}}}, see "
            "docs/logs.md"
        )
    lists = {place: items for row in rows[:1] for place, items in row.items() if is_list_of_objects(items)}
    inside = "".join(f" {place} is a list of objects with {', '.join(items[0])}." for place, items in lists.items())
    return (
        f"{path} has {shown}, and none of these keys or columns is known.{excerpt(inside, 300)} Map some of them by "
        "columns, column or messages, see docs/logs.md"
    )


def choices_unread(path: Path, choices: Sequence[str]) -> str:
    """Why questions with choices are not guessed, and what to do."""
    return (
        f"{path}: each record is a question with choices in {excerpt(', '.join(choices), 100)}, and its answer is the "
        "letter or the number of a choice. A user who only asks the question does not show the choices. Yield "
        "scenarios with the choices in the question from a function, and read them by kind: python, see docs/own.md"
    )


def is_list_of_objects(value: Any) -> bool:
    """Return True for a list of at least one object, and nothing else."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def first_name(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The first known name that is among these, in any case, with or without spaces and underscores."""
    by_name = {folded(name): name for name in reversed(names)}
    return next((by_name[folded(name)] for name in known if folded(name) in by_name), None)


def speaker_names(value: Any) -> dict[str, str] | None:
    """Keys of the speaker and of the text in a list of messages of two or more speakers. None for anything else."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    role, content = (next((name for name in known if name in value[0]), None) for known in (_ROLES, _CONTENTS))
    if role is None or content is None or any(isinstance(item.get("children"), list) for item in value):
        return None
    speakers = {item.get(role) for item in value if isinstance(item.get(role), str)} - {"system", "developer"}
    return {"role": role, "content": content} if len(speakers) > 1 else None


def lists_of_objects(document: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Places of lists of objects that are not empty, in objects within objects. Lists of messages are left out."""
    for key, item in document.items():
        if isinstance(item, dict):
            yield from lists_of_objects(item, f"{place}{key}.")
        elif is_list_of_objects(item) and (not speaker_names(item) or find_group([leaves(entry) for entry in item])):
            yield f"{place}{key}"


def is_whole_chat(value: Any) -> bool:
    """True for messages of two speakers of which the second has the last word."""
    names = speaker_names(value)
    if names is None:
        return is_list_of_objects(value) and find_messages([leaves(item) for item in value]) is not None
    speakers = [who for item in value if (who := item.get(names["role"])) not in ("system", "developer")]
    return bool(speakers[-1] != speakers[0])


def list_by_value(record: Mapping[str, Any], parts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Settings of a list in which the speakers have common names, at any place but `parts` and under any key.

    {"Transcript": [{"ParticipantRole": "CUSTOMER", "Content": "Hi"}, …]}
    → column Transcript, names {role: ParticipantRole, content: Content}
    """
    places = []
    for place, items in leaves(record).items():
        value = parsed(items)
        if place not in parts and is_list_of_objects(value):
            inner = [leaves(item) for item in value]
            columns = None if find_hidden(inner, None) else find_messages(inner)
            places += [] if columns is None or any(item.get("children") for item in value) else [(place, columns)]
    if len(places) == 1:
        ((place, columns),) = places
        names = {"role": columns.speaker, "content": columns.text}
        renamed = {field: name for field, name in names.items() if field != name}
        yield {
            "column": place,
            **({"names": renamed} if renamed else {}),
            **({"tags": columns.tags} if columns.tags else {}),
        }
