"""Whole conversations of another server, appended to a log through its one writer.

    system S, user U1, assistant A1, user U2, assistant A2     →  turn 1: S U1 A1 ← turn 2: U2 A2, feedback

A team that serves its model with another program appends what its users said. From then on the log is read as if
`grpo serve` had written it: scenarios, demonstrations, preference pairs, triggers and erasures see no difference.
The other server's token ids and log-probabilities are unknown here, so these turns have none. `grpo verify-log` counts
them as unchecked.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from grpo.errors import DataError
from grpo.log.ids import ServingIds
from grpo.log.lines import encode
from grpo.log.records import Feedback, Record, ServedTurn
from grpo.log.writer import ServingLog
from grpo.messages import Message, Tool
from grpo.scenario import Domain, Expected
from grpo.trajectories import Turn

NO_REPLY = "no reply"
"""Reason of the aborted turn that has the messages after the last reply."""
_GIVEN = ("rating", "comment", "success", "expected", "world")
"""Fields of a conversation that become feedback."""
_OWN_SCOPES = ("feedback", "outcomes")
"""Scopes of feedback that a program writes into its own log."""
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
"""Each day of a log is a folder, so this also bounds how many folders one key can make."""
_BATCH = 256  # conversations whose records wait for the disk together


class LoggedConversation(BaseModel):
    """One conversation that another server had."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: str = Field(min_length=1, max_length=256)
    """Name of the conversation at the other server. If it is appended again under this name, it counts once."""
    time: AwareDatetime
    """Start of the conversation."""
    model: str = Field(min_length=1, max_length=256)
    """Model that answered: name and version in the registry, `support-desk/3`. Triggers compare versions by it."""
    messages: tuple[Message, ...]
    """Messages from the first one on, with at least one reply of the assistant."""
    tools: tuple[Tool, ...] = ()
    """Tools that the agent could call."""
    rating: float | None = Field(default=None, ge=0, le=1)
    """The user's rating, 0 worst, 1 best."""
    comment: str | None = None
    """The user's words about the conversation."""
    success: bool | None = None
    """Verified outcome."""
    expected: Expected | None = None
    """Expected outcome, from a reviewer or from the conversation's end."""
    world: dict[str, Any] | None = None
    """State at the start of the conversation of the records that the agent's tools read and changed."""
    category: str = Field(default="general", min_length=1, max_length=200)
    domain: Domain = "general"
    user: str = Field(default="", max_length=512)
    """Name of the user, of which the log keeps a salted hash, so that the user can be erased. Empty if unknown."""
    consent: str = ""
    """Uses that the user agreed to. Without consent, nothing is trained on the conversation."""
    licence: str = ""

    @model_validator(mode="after")
    def _is_answered(self) -> Self:
        if all(message.role != "assistant" for message in self.messages):
            raise ValueError(f"conversation {self.id[:80]} has no reply of the assistant. Leave it out")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedIds:
    """Ids of an appended conversation in the log, by which feedback and erasures name it."""

    conversation_id: str
    turn_ids: tuple[str, ...]
    """Ids of the answered turns, in order."""


class ConversationWriter(Protocol):
    """Log that conversations are appended to, see `grpo.log.writer.ServingLog`."""

    @property
    def ids(self) -> ServingIds:
        """Ids of conversations and turns."""
        ...

    def user_hash(self, name: str) -> str:
        """Hash of a user's name."""
        ...

    def is_conversation_erased(self, conversation_id: str, *, user: str = "", time: datetime | None = None) -> bool:
        """True if a conversation, or its user, was erased."""
        ...

    async def append(self, record: Record) -> None:
        """Return when the record is durable."""
        ...


def append(folder: Path | str, conversations: Iterable[LoggedConversation]) -> list[LoggedIds | None]:
    """Append conversations to the log in this folder, and return their ids, in order, once they are durable.

    A conversation that was appended before counts once. If it has grown since then, its new turns are added. A
    conversation that was erased, or that its erased user had before the erasure, is not written, and its ids are None.
    If the call fails or its process is killed, append the same conversations again.

    Any number of processes may append to one folder at once, also while `grpo serve` writes to it. A program with an
    event loop of its own can keep a `ServingLog` open and call `append_conversation` instead.

    Raises `DataError` for a time in the future and for values that JSON cannot hold, and `StorageError` if the log
    cannot be written.
    """
    with ThreadPoolExecutor(1) as executor:  # a notebook already runs an event loop in its own thread
        return executor.submit(asyncio.run, _append(Path(folder), iter(conversations))).result()


async def _append(folder: Path, conversations: Iterator[LoggedConversation]) -> list[LoggedIds | None]:
    appended: list[LoggedIds | None] = []
    async with ServingLog(folder) as log:
        while batch := list(islice(conversations, _BATCH)):
            appended += await asyncio.gather(*(append_conversation(log, item) for item in batch))
    return appended


async def append_conversation(
    log: ConversationWriter,
    conversation: LoggedConversation,
    *,
    key: str = "",
    scopes: Sequence[str] = _OWN_SCOPES,
    now: datetime | None = None,
) -> LoggedIds | None:
    """Append a conversation to an open log, and return its ids once it is durable. None if it was erased.

    `key` is the hash of the key that sent it, and `scopes` are the scopes of that key, by which readers of the log
    decide whether its outcomes count. Raises like `append`.
    """
    now = datetime.now(UTC) if now is None else now
    if (fault := time_fault(conversation.time, now=now)) is not None:
        raise DataError(
            f"conversation {conversation.id} begins at {conversation.time.isoformat()}, which is {fault}. Give the "
            "time at which it began"
        )
    user = log.user_hash(conversation.user) if conversation.user else ""
    conversation_id = log.ids.new_conversation(key, conversation.id)
    if log.is_conversation_erased(conversation_id, user=user, time=conversation.time):
        return None
    turns = list(_turns(conversation, conversation_id, log.ids, key=key, user=user))
    try:
        feedback = list(_feedback(conversation, conversation_id, key=key, scopes=scopes, now=now))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the outcome of conversation {conversation.id} cannot be stored as JSON: {error}. Correct its values"
        ) from error
    records: list[Record] = [*turns, *feedback]
    for record in records:
        encode(record)  # before the first record is written, so that a fault of one leaves no part of the conversation
    await asyncio.gather(*map(log.append, records))
    answered = tuple(turn.id for turn in turns if turn.status == "answered")
    return LoggedIds(conversation_id=conversation_id, turn_ids=answered)


def time_fault(time: datetime, *, now: datetime) -> str | None:
    """Reason why a conversation cannot have begun at this time, or None. Before 2000, a clock was not set."""
    if time > now:
        return "in the future"
    return "before 2000" if time < _EARLIEST else None


def _turns(
    conversation: LoggedConversation, conversation_id: str, ids: ServingIds, *, key: str, user: str
) -> Iterator[ServedTurn]:
    """Turns that end with a reply, and an aborted one with the messages after the last reply, if there are some."""
    parent: str | None = None
    for number, messages in enumerate(_split(conversation.messages)):
        answered = messages[-1].role == "assistant"
        # the same messages may be answered when the conversation is appended again, and are another turn then
        id = ids.new_turn(conversation_id, f"{number}" if answered else f"{number} {NO_REPLY}")
        yield ServedTurn(
            id=id,
            request_id=id,
            conversation_id=conversation_id,
            parent=parent,
            time=conversation.time,
            status="answered" if answered else "aborted",
            reason="stop" if answered else NO_REPLY,
            model=conversation.model,
            policy_hash="",
            renderer_hash="",
            turns=tuple(Turn(message=message, start=0, stop=0) for message in messages),
            token_ids=np.empty(0, np.int32),
            loss_mask=np.empty(0, np.bool_),
            sampler_logprobs=np.empty(0, np.float32),
            tools=tuple(tool.to_template()["function"] for tool in conversation.tools),
            temperature=1.0,
            seed=0,
            latency_s=0.0,
            key=key,
            user=user,
            consent=conversation.consent,
            licence=conversation.licence,
            metadata={"category": conversation.category, "domain": conversation.domain},
        )
        parent = id


def _split(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Split after each reply."""
    part: list[Message] = []
    for message in messages:
        part.append(message)
        if message.role == "assistant":
            yield part
            part = []
    if part:
        yield part


def _feedback(
    conversation: LoggedConversation, conversation_id: str, *, key: str, scopes: Sequence[str], now: datetime
) -> Iterator[Feedback]:
    """Feedback with the outcome of the conversation, if it has one. The same outcome always gets the same id."""
    given = {name: value for name in _GIVEN if (value := getattr(conversation, name)) is not None}
    if given:
        text = json.dumps(conversation.model_dump(mode="json", include=set(given)), sort_keys=True)
        yield Feedback(
            id=hashlib.sha256(f"{conversation_id}\0{text}".encode(errors="surrogatepass")).hexdigest()[:32],
            time=now,
            conversation_id=conversation_id,
            key=key,
            scopes=tuple(sorted(scopes)),
            **given,
        )
