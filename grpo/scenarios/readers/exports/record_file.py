"""Files of logged objects: JSON lines, or a JSON document with one object or a list of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.data_errors import LONGEST_LINE
from grpo.scenarios.logged_chat import MAX_MESSAGES
from grpo.scenarios.message_columns import find_group, is_group_name, leaves
from grpo.scenarios.message_order import is_time_name
from grpo.scenarios.readers.exports.chat_programs import chats_in
from grpo.scenarios.readers.exports.codex import is_session_file, is_session_item
from grpo.scenarios.readers.exports.coding_agents import is_goose_file
from grpo.scenarios.readers.exports.gemini_cli import is_session_entry, is_session_log
from grpo.scenarios.readers.exports.silly_tavern import is_chat_file
from grpo.scenarios.readers.files.json_file import document_items, item_records, read_jsonl
from grpo.scenarios.readers.files.source_files import data_suffix, open_json, read_document
from grpo.scenarios.readers.messages.langchain_messages import is_serialized
from grpo.scenarios.readers.messages.logged_requests import LISTS
from grpo.scenarios.readers.messages.message_items import is_item
from grpo.scenarios.readers.messages.speakers import CALLS, SPEAKERS, TOOLS, speaker_name
from grpo.scenarios.records import SourceRecord

_LINES = (".jsonl", ".ndjson")
_CHAT_KEYS = {*LISTS, "scenarios"}
"""Keys of a list of messages or of records in a document that is one record."""
_WHO = ("role", "from", "type")
"""Keys of the speaker."""
_NO_GROUPS = ("role", "from", "type", "kind", "content", "parts", "status")
"""Keys of a message that tell nothing of its chat."""


def read_objects(path: Path, records: str | None = None, *, chats: bool = False) -> Iterator[SourceRecord]:
    """Read JSON lines, or a JSON document. `records` is the place of the list of records in a document.

    The file is read as lines if its name says `.jsonl` or `.ndjson`. A file `.json` is read as lines if its first line
    is an object and another line follows, and a file of any other name unless it begins like a document. Blank lines do
    not count. The `line` of a record is its line, or in a document its number. With `chats`, a document that is a list
    of messages is one chat, and so is each list of messages in an object whose keys are ids, each chat of a document of
    a program, and a file of lines of SillyTavern, Codex, Gemini CLI or goose. Without it, each message is a record,
    because the records of other formats may look like messages.

    Raises `DataError` if a document is broken or over 64 MiB.
    """
    if records is None and (data_suffix(path) in _LINES or has_lines(path)):
        lines = read_jsonl(path)
        begin = [*islice(lines, 2)] if chats else []
        first_lines = [record.data for record in begin]
        if is_chat_file(first_lines) or is_goose_file(first_lines):
            yield _of_one_chat(begin[0], chain(begin[1:], lines))
        elif is_session_file(first_lines):
            yield _of_one_chat(begin[0], chain(begin[1:], lines), is_message=is_session_item)
        elif is_session_log(first_lines):
            yield _of_one_chat(begin[0], chain(begin[1:], lines), is_message=is_session_entry)
        else:
            yield from map(_line, chain(begin, lines))
        return
    document = read_document(path)
    items = document_items(path, document, records)
    if items is None:
        items = (chats and isinstance(document, dict) and (_by_id(document) or chats_in(document))) or [document]
    elif chats and _is_chat(items):
        items = [items]
    yield from item_records(path, [_as_object(item) for item in items])


def _of_one_chat(
    first: SourceRecord,
    lines: Iterator[SourceRecord],
    *,
    is_message: Callable[[dict[str, Any]], bool] = lambda line: True,
) -> SourceRecord:
    """One record of a file that is one chat: its first line, and the others as messages. It is broken if a line is."""
    messages: list[dict[str, Any]] = []
    for line in lines:
        if line.problem is not None:
            problem = f"line {line.line} of the chat cannot be read: {line.problem}. Correct it, or delete the line"
            return replace(first, data=None, raw=line.raw, problem=problem)
        if line.data is not None and is_message(line.data):
            messages.append(line.data)
        if len(messages) > MAX_MESSAGES:
            problem = f"over-long chat: over {MAX_MESSAGES} messages. Delete lines at the end of the file"
            return replace(first, data=None, raw=line.raw, problem=problem)
    return replace(first, data={**(first.data or {}), "messages": messages})


def _line(record: SourceRecord) -> SourceRecord:
    """A line that is a chat's list of messages, as an object."""
    value = _as_object(_value(record.raw.encode())) if record.data is None and record.raw.startswith("[") else None
    return replace(record, data=value, problem=None) if isinstance(value, dict) else record


def _by_id(document: dict[str, Any]) -> list[Any]:
    """Chats of an object in which each key is the id of a chat: {"c1": [{"role", "content"}, …], …}."""
    if document.keys() & _CHAT_KEYS or not all(map(_is_chat, document.values())):
        return []
    return [{"id": name, "messages": chat} for name, chat in document.items()]


def _is_chat(value: Any) -> bool:
    """True for the messages of one chat. False for a table in which a column names the chat of each message."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return False
    if not all(_is_message(item) or is_serialized(item) or is_item(item) for item in value):
        return False
    if not any(_is_message(item) or is_serialized(item) or "parts" in item for item in value):
        return False
    return find_group([leaves(item) for item in value]) is None and not _is_table(value)


def _is_message(item: dict[str, Any]) -> bool:
    """True for a message of a known speaker, with a text or parts, and not a record with a list of messages."""
    name = speaker_name(item.get("role"))
    return (
        name in (*SPEAKERS, *CALLS, *TOOLS)
        and bool({"content", "parts", "blocks"} & {*item})
        and not {*LISTS, "request", "body", "contents"} & {*item}
    )


def _is_table(messages: list[dict[str, Any]]) -> bool:
    """True if a column has several values, most of them at messages of two speakers, so that it may name a chat.

    [{"sample": 1, "role": "user", …}, {"sample": 1, "role": "assistant", …}, {"sample": 2, "role": "user", …}, …]
    """
    return next(_columns_of_chats(messages), None) is not None


def column_of_chats(messages: Any) -> str | None:
    """Column with the chat of each message. None if the list has only one chat."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    names = {name for message in messages for name in message}
    groups = [name for name in names if is_group_name(name)]
    if not groups:
        return None
    kept = [{name: message[name] for name in (*_WHO, *groups) if name in message} for message in messages]
    return next(_columns_of_chats(kept), None)


def _columns_of_chats(messages: list[dict[str, Any]]) -> Iterator[str]:
    speakers: dict[str, dict[str | int, list[str]]] = {}
    for message in messages:
        speaker = next((str(message[name]) for name in _WHO if name in message), "")
        for name, value in message.items():
            if isinstance(value, (str, int)) and not isinstance(value, bool) and not is_time_name(name):
                speakers.setdefault(name, {}).setdefault(value, []).append(speaker)
    for name, values in speakers.items():
        if name not in _NO_GROUPS and _tells_chats_apart(values):
            yield name


def _tells_chats_apart(speakers: dict[str | int, list[str]]) -> bool:
    """True if most messages have a value that repeats, and most of these values begin with the user and have replies.

    The speakers of each value are in the order of the list. Counts of tokens and the like begin with anybody.
    """
    repeated = [names for names in speakers.values() if len(names) > 1]
    chats = [names for names in repeated if len({*names}) > 1 and SPEAKERS.get(speaker_name(names[0])) != "assistant"]
    messages = sum(map(len, speakers.values()))
    return len(speakers) > 1 and 2 * len(chats) > len(repeated) and 2 * sum(map(len, repeated)) > messages


def has_lines(path: Path) -> bool:
    """True if a file has one record per line. `read_objects` describes how files with other names are read."""
    with open_json(path) as file:
        lines = (line for line in iter(partial(file.readline, LONGEST_LINE), b"") if line.strip())
        first, has_more = next(lines, b""), next(lines, None) is not None
        if has_more and isinstance(_value(first), dict):  # a document of one line is not parsed once more for this
            return True
        return data_suffix(path) != ".json" and not first.lstrip().startswith((b"[", b"{"))


def _as_object(item: Any) -> Any:
    """A chat that is only its list of messages, as an object."""
    is_chat = isinstance(item, list) and bool(item) and all(isinstance(message, dict) for message in item)
    return {"messages": item} if is_chat else item


def _value(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None
