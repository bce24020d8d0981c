"""Requests of `POST /v1/feedback`.

Because feedback is evidence for training, a key may only give it on its own conversations. Fields that decide whether
an episode succeeded need the scope `outcomes`. Refused feedback is not written, and the checks do not depend on the
size of the log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from grpo.errors import DataError
from grpo.log.ids import turn_of
from grpo.log.records import OUTCOMES, Feedback
from grpo.messages import Message, ToolCall
from grpo.scenario import Expected
from grpo.scenarios.readers.messages.openai_format import parse_message
from grpo.serving.access.callers import Caller
from grpo.serving.access.limits import Limiter
from grpo.serving.access.refused_work import STATUSES
from grpo.serving.protocol.api_errors import APIError, overloaded
from grpo.serving.protocol.json_bounds import BoundedFields
from grpo.serving.protocol.request_parts import TAG
from grpo.serving.requests.turn_log import TurnLog

_MOST_BYTES = 64 * 2**10
_MOST_LEVELS = 16
_BYTES_OF_A_TOKEN = 4
REPAIR_S = 60.0


def bounded(value: Any) -> Any:
    """Return the value. Raises `ValueError` if its JSON has more than `_MOST_BYTES` bytes or `_MOST_LEVELS` levels."""
    level: Sequence[Any] = [value.model_dump() if isinstance(value, BaseModel) else value]
    for _ in range(_MOST_LEVELS):
        level = [item for outer in level for item in _items(outer)]
    if level:
        raise ValueError(f"it has more than {_MOST_LEVELS} levels. Send a flatter one")
    document = value.model_dump(exclude_defaults=True) if isinstance(value, BaseModel) else value
    size = len(json.dumps(document, ensure_ascii=False, allow_nan=False).encode())
    if size > _MOST_BYTES:
        raise ValueError(f"it has {size} bytes of JSON. Send at most {_MOST_BYTES}")
    return value


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


FeedbackText = Annotated[str, StringConstraints(max_length=20_000)]
_Id = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,80}$")]


class CorrectedCall(BaseModel):
    """Tool call that a reply should have had, in the form of `expected.calls`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,64}$")]
    arguments: Annotated[dict[str, Any], AfterValidator(bounded)]


class CorrectedReply(BaseModel):
    """Reply with tool calls."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    content: FeedbackText = ""
    tool_calls: Annotated[list[CorrectedCall], Field(fail_fast=True)] = Field(min_length=1, max_length=16)

    @classmethod
    def from_message(cls, message: Message) -> str | CorrectedReply:
        """Corrected reply from a message, or only its text if it has no calls."""
        if not message.tool_calls:
            return message.content
        calls = [CorrectedCall(name=call.name, arguments=dict(call.arguments)) for call in message.tool_calls]
        return cls(content=message.content, tool_calls=calls)

    def to_message(self) -> Message:
        """Message of the assistant."""
        calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in self.tool_calls)
        return Message(role="assistant", content=self.content, tool_calls=calls)


def _own_form(value: Any) -> Any:
    """A correction in OpenAI's form as `content` and `tool_calls` of this API. Other values stay as they are."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("a correction needs content or tool_calls")
    if not isinstance(value, dict):
        return value
    calls = value.get("tool_calls")
    listed = calls if isinstance(calls, list) else []
    called = [call["function"] for call in listed if isinstance(call, dict) and "function" in call]
    if not (called or "role" in value or value.get("content", "") is None):
        return value
    texts = [function.get("arguments") for function in called if isinstance(function, dict)]
    if any(isinstance(text, str) and len(text) > _MOST_BYTES for text in texts):
        raise ValueError(f"the arguments of a call have more than {_MOST_BYTES} bytes. Send fewer")
    message = parse_message({"role": "assistant", **value}, 0)
    if message.role != "assistant" or not message.weight:
        raise ValueError("a correction is a reply of the assistant")
    if not message.tool_calls and not message.content.strip():
        raise ValueError("a correction needs content or tool_calls")
    if not message.tool_calls:
        return message.content
    corrected = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    return {"content": message.content, "tool_calls": corrected}


def _form(value: Any) -> str | None:
    if isinstance(value, str):
        return f"{TAG}text"
    return f"{TAG}reply" if isinstance(value, (dict, CorrectedReply)) else None


_Correction = Annotated[
    Annotated[FeedbackText, Tag(f"{TAG}text")] | Annotated[CorrectedReply, Tag(f"{TAG}reply")],
    Discriminator(
        _form,
        custom_error_type="correction_type",
        custom_error_message="a correction is a text or an object with content and tool_calls",
    ),
]


def to_reply(correction: str | CorrectedReply) -> Message:
    """Message of a correction."""
    return Message(role="assistant", content=correction) if isinstance(correction, str) else correction.to_message()


class FeedbackRequest(BoundedFields):
    """Feedback on a turn, by the `id` of its response, or on a whole conversation."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    id: _Id | None = None
    """Idempotency key, by default made of caller and content, so that a repeated request counts once."""
    conversation_id: _Id
    turn_id: _Id | None = None
    """`id` of the response, with or without `chatcmpl-` or `resp_`."""
    rating: float | None = Field(default=None, ge=0, le=1)
    """0 worst, 1 best."""
    comment: FeedbackText | None = None
    correction: Annotated[_Correction | None, BeforeValidator(_own_form)] = None
    """Reply that the turn should have been: a text, `content` and `tool_calls`, or OpenAI's message. Needs
    `turn_id`."""
    success: bool | None = None
    """Verified outcome of the conversation."""
    expected: Annotated[Expected, AfterValidator(bounded)] | None = None
    """Expected outcome, for rewards."""
    world: Annotated[dict[str, Any], AfterValidator(bounded)] | None = None
    """Records that the agent's tools read and changed, as they were at the start of the conversation."""

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        given = (self.rating, self.comment, self.correction, self.success, self.expected, self.world)
        if all(value is None for value in given):
            raise ValueError("give rating, comment, correction, success, expected or world")
        if self.correction is not None and self.turn_id is None:
            raise ValueError("a correction needs the turn_id that it corrects")
        return self

    def to_record(self, caller: Caller, *, now: datetime) -> Feedback:
        """Record for the log."""
        content = f"{caller.key_hash}\0{self.model_dump_json(exclude={'id'})}"
        given = f"{caller.key_hash}\0{self.id}"
        fields = self.model_dump(exclude={"id", "turn_id", "expected", "correction"})
        return Feedback(
            id=hashlib.sha256((content if self.id is None else given).encode()).hexdigest()[:32],
            time=now,
            turn_id=None if self.turn_id is None else turn_of(self.turn_id),
            expected=self.expected,
            correction=None if self.correction is None else to_reply(self.correction),
            key=caller.key_hash,
            scopes=tuple(sorted(caller.scopes)),
            **fields,
        )


class Receipt(BaseModel):
    """Answer to feedback that is in the log."""

    id: str
    object: str = "feedback"


async def log_feedback(
    body: FeedbackRequest, caller: Caller, log: TurnLog, limiter: Limiter, *, now: datetime
) -> Feedback:
    """Check feedback and log it durably. It counts as a request of its size, also if it is refused.

    Raises `APIError` 403 if it has outcomes but the key lacks their scope, 404 if this key has no such conversation or
    turn, and 503 if it is not known whether the conversation was erased. Errors of the limiter and the log are passed
    on.
    """
    async with counted(body, caller, limiter):
        refuse_outcomes(body, caller)
        _refuse_unknown(body, caller, log)
        record = body.to_record(caller, now=now)
        await log.append(record)
    return record


@asynccontextmanager
async def counted(body: BaseModel, caller: Caller, limiter: Limiter) -> AsyncIterator[None]:
    """Count a request in the limits of its key, by its size, also if the block refuses it.

    If the guard counts a refusal of the block as a refused request, it does not count here as well.
    """
    tokens = 1 + len(body.model_dump_json()) // _BYTES_OF_A_TOKEN
    reservation = await limiter.reserve(caller, tokens)
    try:
        yield
    except APIError as error:
        if error.status in STATUSES:
            await reservation.cancel()
        raise
    finally:
        await reservation.settle(tokens)


def refuse_outcomes(body: BaseModel, caller: Caller) -> None:
    """Raise `APIError` 403 if a request gives an outcome but the key does not have the scope for it."""
    given = [name for name in OUTCOMES if getattr(body, name) is not None]
    if given and "outcomes" not in caller.scopes:
        message = f"{', '.join(given)}: needs the scope outcomes. Key {caller.name} has {caller.listed}"
        raise APIError(403, message, type="permission_error", param=given[0], code="insufficient_scope")


def _refuse_unknown(body: FeedbackRequest, caller: Caller, log: TurnLog) -> None:
    """Raise 404, with the same words if the id does not exist and if it belongs to another key."""
    name, turn, ids = body.conversation_id, body.turn_id, log.ids
    known = ids.is_conversation(name) if "admin" in caller.scopes else ids.owns(caller.key_hash, name)
    try:
        erased = known and log.is_conversation_erased(name)
    except DataError as error:
        message = "feedback is refused until the log is repaired, because an erasure in it cannot be read"
        raise overloaded(message, retry_after_s=REPAIR_S) from error
    if not known or erased:
        message = f"key {caller.name} has no conversation {name!r}"
        raise APIError(404, message, param="conversation_id", code="conversation_not_found")
    if turn is not None and turn != name and not ids.is_turn(turn_of(turn), name):
        message = f"conversation {name} has no turn {turn!r}"
        raise APIError(404, message, param="turn_id", code="turn_not_found")
