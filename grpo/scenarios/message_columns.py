"""Find the columns of messages by their names and values: who speaks, what is said, and in which conversation.

A guess of settings uses it, see `grpo.scenarios.guess`. Names alone do not suffice, because exports call a speaker
`direction`, `sentBy`, `ParticipantRole` or `author.isBot`. The values tell: they are names of users and agents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.data_errors import try_call
from grpo.scenarios.readers.places import parsed
from grpo.scenarios.readers.speakers import CALLS, SPEAKERS, TOOLS, speaker_name
from grpo.scenarios.times import instant

Row = Mapping[str, Any]
"""Values of a record by their places, see `leaves`."""

_DEPTH = 4  # objects within objects that are looked into
_GROUP = re.compile(
    r"(conversation|session|thread|chat|ticket|dialog|dialogue)"
    r"|(conversation|conv|session|thread|chat|ticket|dialog|dialogue|case|call|contact|interaction|sender)"
    r"(id|sid|uuid|key|identifier|number|ts)"
)
_SPEAKERS = ("role", "speaker", "authorrole", "authortype", "sendertype", "author", "sender", "from", "direction")
_SIDES = ("role", "speaker", "authorrole", "authortype", "sendertype", "messagetype")
"""Columns that tell which side wrote a message, so that a row is a message and not a scenario."""
_TEXTS = (
    "body", "plainbody", "bodytext", "message", "messagetext", "content", "text", "utterance", "value", "parts",
    "blocks", "items", "transcript", "output",
)  # fmt: skip
_HIDDEN = ("note", "internal", "private")
"""Values of a column that mark what the user does not see."""
_VERDICTS = {"accept", "reject", "ignore"}
"""Values of Prodigy's `answer`, which is not a reply."""
_ORDERS = re.compile(r".*(createdat|createddate|datecreated|created|timestamp|time|sentat|date|absolutetime)|ts|turn")
_QUESTION = re.compile(
    r"(user|customer|human|client|visitor)s?(message|input|query|text|utterance|question)|question|query|prompt"
    r"|inputtranscript"
)
_ANSWER = re.compile(
    r"(bot|assistant|agent|ai|model|llm|chatbot)s?(message|response|reply|answer|output|text)|answer|response|reply"
    r"|completion"
)
_TRUE_IS_AGENT = re.compile(r"(is|from)?(bot|agent|assistant|ai|operator|staff)")
_TRUE_IS_USER = re.compile(r"(is|from|isfrom|iscreatedby|createdby|by)?(user|customer|client|visitor|incoming)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageColumns:
    """Places of the speaker and of the text in rows that are one message each."""

    speaker: str
    text: str
    tags: dict[str, str]
    """Meaning of speakers that have no common name."""


def leaves(record: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a record by their places. Objects, also as JSON in a text, are opened: {"a": {"b": 1}} → {"a.b": 1}."""
    return dict(_leaves(record, "", _DEPTH))


def _leaves(record: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        inner = parsed(value)
        if isinstance(inner, Mapping) and inner and depth:
            yield from _leaves(inner, f"{prefix}{key}.", depth - 1)
        else:
            yield f"{prefix}{key}", value


def find_messages(rows: Sequence[Row]) -> MessageColumns | None:
    """Columns of rows that are messages of a user and an agent. None if no column tells who speaks.

    If a row has another speaker, it must have no text, such as an event that a bot logs between its messages.
    """
    text = _text_column(rows)
    places = dict.fromkeys(place for row in rows for place in row)
    for speaker in sorted(places, key=lambda place: _rank(place, _SPEAKERS)):
        tags = None if text is None or speaker == text else _tags(rows, speaker, text)
        if text is not None and tags is not None:
            return MessageColumns(speaker=speaker, text=text, tags=tags)
    return None


def are_messages(rows: Sequence[Row]) -> bool:
    """True if a row has a text and a speaker by their names, and no reply. The values may be of one speaker only."""
    names = {folded(place.rpartition(".")[2]) for row in rows for place in row}
    return bool(names & {*_SIDES} and names & {*_TEXTS}) and find_exchange(rows) is None


def find_group(rows: Sequence[Row]) -> str | None:
    """Column of the conversation of a row, by its name."""
    places = dict.fromkeys(place for row in rows for place in row)
    return next((place for place in places if _GROUP.fullmatch(folded(place)) and not _is_list(rows, place)), None)


def find_order(rows: Sequence[Row]) -> str | None:
    """Column of the time of a row. Each of its values has to be a time or a number."""
    places = dict.fromkeys(place for row in rows for place in row)
    named = (place for place in places if _ORDERS.fullmatch(folded(place)))
    return next((place for place in named if all(_is_time(row.get(place)) for row in rows)), None)


def find_exchange(rows: Sequence[Row]) -> tuple[str, str] | None:
    """Columns of the user's message and of the agent's reply in rows that have both."""
    places = list(dict.fromkeys(place for row in rows for place in row))
    asked, answered = (
        next((place for place in places if pattern.fullmatch(folded(place)) and not _is_list(rows, place)), None)
        for pattern in (_QUESTION, _ANSWER)
    )
    return (asked, answered) if asked is not None and answered is not None else None


def find_visible(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Column and values of the rows that the user sees, if others do not: internal notes of a help desk."""
    for place in dict.fromkeys(place for row in rows for place in row):
        name, values = folded(place.rpartition(".")[2]), {row.get(place) for row in rows if _is_scalar(row.get(place))}
        texts = {str(value).lower() for value in values if value not in (None, "")}
        if name in ("private", "internal", "isprivate", "isinternal") and texts == {"true", "false"}:
            return {place: ["false", "False"]}
        if name in ("public", "ispublic") and texts == {"true", "false"}:
            return {place: ["true", "True"]}
        if name in ("type", "messagetype", "visibility", "kind") and texts & {*_HIDDEN}:
            return {place: sorted(str(value) for value in values if str(value).lower() not in (*_HIDDEN, "none", ""))}
    return {}


def find_verdicts(rows: Sequence[Row]) -> set[str]:
    """Columns that say what an annotator thinks of a row, under the name of a reply."""
    places = {place for row in rows for place in row}
    return {place for place in places if {str(row.get(place)) for row in rows} <= _VERDICTS}


def has_list_of_texts(rows: Sequence[Row]) -> bool:
    """Has a row a list of objects with a text each? It is more than one question then."""
    lists = [value for row in rows for value in map(parsed, row.values()) if isinstance(value, list)]
    return any(
        len(items) > 1 and all(isinstance(item, Mapping) and {*map(folded, item)} & {*_TEXTS} for item in items)
        for items in lists
    )


def repeats(rows: Sequence[Row], place: str | None) -> bool:
    """Do several rows have the same value? Then these rows belong together."""
    values = [] if place is None else [str(row[place]) for row in rows if row.get(place) not in (None, "")]
    return len({*values}) < len(values)


def folded(name: str) -> str:
    """A name in lower case, without spaces and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _rank(place: str, known: Sequence[str]) -> int:
    for name in (folded(place), folded(place.rpartition(".")[2])):
        if name in known:
            return known.index(name)
    return len(known)


def _text_column(rows: Sequence[Row]) -> str | None:
    """Column of a text that most rows have, under a usual name."""
    places = dict.fromkeys(place for row in rows for place in row)
    named = sorted((place for place in places if _rank(place, _TEXTS) < len(_TEXTS)), key=lambda p: _rank(p, _TEXTS))
    return max(named, key=lambda place: sum(_is_text(row.get(place)) for row in rows), default=None)


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, list)) and bool(value)


def _tags(rows: Sequence[Row], speaker: str, text: str) -> dict[str, str] | None:
    """Meaning of the values of this column that have no common name. None if they are not speakers."""
    values = [row.get(speaker) for row in rows]
    if all(isinstance(value, bool) or str(value).lower() in ("true", "false") for value in values):
        name = folded(speaker.rpartition(".")[2])
        true = "assistant" if _TRUE_IS_AGENT.fullmatch(name) else "user" if _TRUE_IS_USER.fullmatch(name) else None
        return None if true is None else {"true": true, "false": "user" if true == "assistant" else "assistant"}
    meanings = {value: SPEAKERS.get(speaker_name(value)) for value in values if isinstance(value, str)}
    if not {"user", "assistant"} <= {*meanings.values()}:
        return None
    unknown = {value for value in meanings if speaker_name(value) not in (*SPEAKERS, *CALLS, *TOOLS)}
    with_text = {
        row[speaker] for row in rows if isinstance(row.get(speaker), str) and row.get(text) not in (None, "", [])
    }
    if with_text & unknown:
        return None
    return dict.fromkeys(sorted(unknown), "ignore")


def _is_list(rows: Sequence[Row], place: str) -> bool:
    return any(isinstance(parsed(row.get(place)), (list, Mapping)) for row in rows)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bool))


def _is_time(value: Any) -> bool:
    return not isinstance(try_call(lambda: instant(value)), Exception)
