"""Find the columns of messages by their names and values: who speaks, what is said, and in which conversation.

A guess of settings uses it, see `grpo.scenarios.guess`. Names alone do not suffice, because exports call a speaker
`direction`, `sentBy`, `ParticipantRole` or `author.isBot`. The values tell: they are names of users and agents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grpo.scenarios.message_order import Row, find_order, folded
from grpo.scenarios.readers.files.places import parsed
from grpo.scenarios.readers.messages.speakers import CALLS, SPEAKERS, TOOLS, speaker_name

_DEPTH = 4  # objects within objects that are looked into
_GROUPS = ("conversation", "conv", "ticket", "dialogue", "dialog", "chat", "thread", "session")
"""Names of a conversation. If a row has several of them, the first one is taken."""
_GROUP = re.compile(
    rf"(({'|'.join(_GROUPS)})s?)*({'|'.join(_GROUPS)}|case|call|interaction)(id|sid|uuid|key|identifier|number|ts)"
    rf"|({'|'.join(_GROUPS)}){{2,}}"
)
_SPEAKERS = ("role", "speaker", "authorrole", "authortype", "sendertype", "author", "sender", "from", "direction")
_SIDES = ("role", "speaker", "authorrole", "authortype", "sendertype", "messagetype")
"""Columns that tell which side wrote a message, so that a row is a message and not a scenario."""
_TEXTS = (
    "body", "plainbody", "bodytext", "message", "messagetext", "content", "text", "utterance", "value", "parts",
    "blocks", "items", "transcript", "output",
)  # fmt: skip
_HIDDEN = (
    "note",
    "notes",
    "internal",
    "private",
    *(f"{a}{b}" for a in ("internal", "private") for b in ("note", "comment")),
)
"""Values of a column that mark what the user does not see."""
_SIDECHAIN = "isSidechain"
_OF_CLAUDE_CODE = (_SIDECHAIN, "isCompactSummary", "isApiErrorMessage")
"""Columns that mark conversations with agents of its own, summaries of earlier turns, and errors of the API."""
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_VERDICTS = {"accept", "reject", "ignore"}
"""Values of Prodigy's `answer`, which is not a reply."""
_OF_PRODIGY = ("_input_hash", "_task_hash")
_QUESTION = re.compile(
    r"(user|customer|human|client|visitor)s?(message|input|query|text|utterance|question)|question|query|prompt"
    r"|inputtranscript"
)
_ANSWER = re.compile(
    r"(bot|assistant|agent|ai|model|llm|chatbot)s?(message|response|reply|answer|output|text)|answer|response|reply"
    r"|completion"
)
_TRUE_IS_AGENT = re.compile(r"(is|from)?(bot|agent|assistant|ai|operator|staff|outbound|outgoing)|(is)?fromme")
_TRUE_IS_USER = re.compile(r"(is|from|isfrom|iscreatedby|createdby|by)?(user|customer|client|visitor|incoming|inbound)")
_CUSTOMERS = {"customer", "client", "consumer", "visitor", "requester", "contact", "enduser"}
"""Names next to which `user` is a member of the staff, as in Help Scout's exports."""


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

    If a row has another speaker, it must have no text, such as an event that a bot logs between its messages, or the
    column must have a known name. Its conversation is quarantined then, with the word that `tags` lacks.
    """
    text = _text_column(rows)
    places = dict.fromkeys(place for row in rows for place in row)
    for speaker in sorted(places, key=lambda place: _rank(place, _SPEAKERS)):
        tags = None if text is None or speaker == text else _tags(rows, speaker, text)
        if text is not None and tags is not None:
            return MessageColumns(speaker=speaker, text=text, tags=tags)
    return None


def find_side(rows: Sequence[Row]) -> MessageColumns | None:
    """Columns of rows that are messages, by their names alone. All values of the speaker are common names, also if they
    are all of one side."""
    text = _text_column(rows)
    places = dict.fromkeys(place for row in rows for place in row)
    sides = (place for place in places if folded(place.rpartition(".")[2]) in _SIDES and place != text)
    known = (side for side in sides if all(speaker_name(row.get(side)) in SPEAKERS for row in rows))
    speaker = next(known, None)
    return None if text is None or speaker is None else MessageColumns(speaker=speaker, text=text, tags={})


def are_messages(rows: Sequence[Row]) -> bool:
    """True if a row has a text and a speaker by their names, and no reply. The values may be of one speaker only.

    Inbound and outbound may also be the classes of texts, and so may the values of a column with another name. They are
    speakers if a column has the time of each message.
    """
    columns = find_messages(rows)
    is_timed = columns is not None and find_order(rows, None) is not None
    names = {folded(place.rpartition(".")[2]) for row in rows for place in row}
    is_named = columns is not None and folded(columns.speaker.rpartition(".")[2]) in {*_SPEAKERS} - {"direction"}
    return (is_named or is_timed or bool(names & {*_SIDES} and names & {*_TEXTS})) and find_exchange(rows) is None


def find_group(rows: Sequence[Row]) -> str | None:
    """Column of the conversation of a row, by its name. A conversation comes before the session that it is in."""
    places = dict.fromkeys(place for row in rows for place in row)
    named = [place for place in places if is_group_name(place) and not _is_list(rows, place)]
    return min(
        named, key=lambda place: next(k for k, word in enumerate((*_GROUPS, "")) if word in folded(place)), default=None
    )


@lru_cache(maxsize=1024)
def is_group_name(place: str) -> bool:
    """True for the name of a conversation, or of its id."""
    name = folded(place)
    return name in _GROUPS or _GROUP.fullmatch(name) is not None


def find_exchange(rows: Sequence[Row]) -> tuple[str, str] | None:
    """Columns of the user's message and of the agent's reply in rows that have both."""
    places = list(dict.fromkeys(place for row in rows for place in row))
    asked, answered = (
        next((place for place in places if pattern.fullmatch(folded(place)) and not _is_list(rows, place)), None)
        for pattern in (_QUESTION, _ANSWER)
    )
    return (asked, answered) if asked is not None and answered is not None else None


def find_hidden(rows: Sequence[Row], group: str | None) -> dict[str, list[str]]:
    """Column and values of the rows that the user does not see: internal notes of a help desk, and the conversations
    of Claude Code with agents of its own.

    A conversation has both, those that the user sees and those that are hidden. A column that tells whole conversations
    apart, such as private and business customers, hides nothing. Claude Code writes each of its columns, also if the
    first rows are all seen.
    """
    if sidechain := next((place for row in rows for place in row if place.rpartition(".")[2] == _SIDECHAIN), None):
        is_own = all(_cell(row.get(sidechain)) in ("true", "") for row in rows)
        prefix = sidechain.removesuffix(_SIDECHAIN)
        return {f"{prefix}{name}": ["true"] for name in _OF_CLAUDE_CODE[1 if is_own else 0 :]}
    for place in dict.fromkeys(place for row in rows for place in row):
        name = folded(place.rpartition(".")[2]).removeprefix("is")
        if name in ("private", "internal", "public", "hidden", "deleted"):
            hidden, known = {*(_FALSE if name == "public" else _TRUE)}, {*_TRUE, *_FALSE, ""}
        elif name in ("type", "messagetype", "visibility", "kind"):
            hidden, known = {*_HIDDEN}, None
        else:
            continue
        texts = [_cell(row.get(place)) for row in rows]
        marks = [folded(text) in hidden for text in texts]
        if (known is None or {folded(text) for text in texts} <= known) and _vary(rows, group, marks):
            return {place: sorted({text for text, mark in zip(texts, marks, strict=True) if mark})}
    return {}


def _vary(rows: Sequence[Row], group: str | None, marks: Sequence[bool]) -> bool:
    """True if a conversation has both rows with a mark and rows without it."""
    keys = [None if group is None else str(row.get(group)) for row in rows]
    return bool(
        {k for k, mark in zip(keys, marks, strict=True) if mark}
        & {k for k, mark in zip(keys, marks, strict=True) if not mark}
    )


def _cell(value: Any) -> str:
    """A scalar as the reader compares it, see `MessageRows.where`. Empty for anything else."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, int)) else ""


def find_verdicts(rows: Sequence[Row]) -> set[str]:
    """Columns that say what an annotator thinks of a row, under the name of a reply, in a file of Prodigy."""
    places = {place for row in rows for place in row}
    if not places & {*_OF_PRODIGY}:
        return set()
    return {place for place in places if {str(row.get(place)) for row in rows} <= _VERDICTS}


def has_list_of_texts(rows: Sequence[Row]) -> bool:
    """True if a row has a list of objects with a text each, which is more than one question."""
    lists = [value for row in rows for value in map(parsed, row.values()) if isinstance(value, list)]
    return any(
        len(items) > 1 and all(isinstance(item, Mapping) and {*map(folded, item)} & {*_TEXTS} for item in items)
        for items in lists
    )


def repeats(rows: Sequence[Row], place: str | None) -> bool:
    """True if several rows have the same value, so that they belong together."""
    values = [] if place is None else [str(row[place]) for row in rows if row.get(place) not in (None, "")]
    return len({*values}) < len(values)


def continues(rows: Sequence[Row], group: str | None, question: str) -> bool:
    """True if the rows of a conversation are its turns, and not replies to one question that are to be compared.

    The column has the name of a conversation. A case or a call may be about several questions of its own.
    """
    if group is None or not folded(group).startswith(_GROUPS):
        return False
    questions: dict[str, list[str]] = {}
    for row in rows:
        questions.setdefault(str(row.get(group)), []).append(str(row.get(question)))
    several = [asked for asked in questions.values() if len(asked) > 1]
    return 2 * sum(len({*asked}) == len(asked) for asked in several) > len(several)


def _rank(place: str, known: Sequence[str]) -> int:
    for name in (folded(place), folded(place.rpartition(".")[2])):
        if name in known:
            return known.index(name)
    return len(known)


def _text_column(rows: Sequence[Row]) -> str | None:
    """Column of a text that most rows have, under a usual name."""
    places = dict.fromkeys(place for row in rows for place in row)
    named = sorted((place for place in places if _rank(place, _TEXTS) < len(_TEXTS)), key=lambda p: _rank(p, _TEXTS))
    return max(
        named,
        key=lambda place: sum(_is_text(row.get(place)) + _is_plain(row.get(place)) for row in rows),
        default=None,
    )


def _is_plain(value: Any) -> bool:
    """True for a text without HTML. An export may have both forms of a message."""
    return isinstance(value, str) and bool(value) and not value.lstrip().startswith("<")


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, list)) and bool(value)


def _tags(rows: Sequence[Row], speaker: str, text: str) -> dict[str, str] | None:
    """Meaning of the values of this column that have no common name. None if they are not speakers."""
    values = [row.get(speaker) for row in rows]
    if all(isinstance(value, bool) or str(value).lower() in ("true", "false") for value in values):
        name = folded(speaker.rpartition(".")[2])
        true = "assistant" if _TRUE_IS_AGENT.fullmatch(name) else "user" if _TRUE_IS_USER.fullmatch(name) else None
        return None if true is None else {"true": true, "false": "user" if true == "assistant" else "assistant"}
    names = {"null" if value in (None, "") else value for value in values if isinstance(value, (str, type(None)))}
    meanings: dict[str, str | None] = {name: SPEAKERS.get(speaker_name(name)) for name in names}
    staff = {name for name in names if speaker_name(name) == "user"}
    if "assistant" not in meanings.values() and {*map(speaker_name, names)} & _CUSTOMERS:
        meanings |= dict.fromkeys(staff, "assistant")
    if not {"user", "assistant"} <= {*meanings.values()}:
        return None
    unknown = {name for name in names if speaker_name(name) not in (*SPEAKERS, *CALLS, *TOOLS)}
    with_text = {row.get(speaker) or "null" for row in rows if row.get(text) not in (None, "", [])}
    if with_text & unknown and _rank(speaker, _SPEAKERS) == len(_SPEAKERS):
        return None
    tags = {name: "assistant" for name in sorted(staff) if meanings[name] == "assistant"}
    return tags | dict.fromkeys(sorted(unknown - with_text), "ignore")


def _is_list(rows: Sequence[Row], place: str) -> bool:
    return any(isinstance(parsed(row.get(place)), (list, Mapping)) for row in rows)
