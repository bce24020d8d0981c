"""Requests of `POST /v1/feedback`."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from grpo.messages import Message, ToolCall
from grpo.scenarios.scenario import Expected
from grpo.scenarios.served.records import Feedback
from grpo.serving.callers import Caller

_Text = Annotated[str, StringConstraints(max_length=20_000)]
_Id = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,80}$")]


class CorrectedCall(BaseModel):
    """Tool call that a reply should have had, in the form of `expected.calls`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,64}$")]
    arguments: dict[str, Any]


class CorrectedReply(BaseModel):
    """Reply with tool calls."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    content: _Text = ""
    tool_calls: list[CorrectedCall] = Field(min_length=1, max_length=16)

    @classmethod
    def from_message(cls, message: Message) -> str | CorrectedReply:
        """The text of a reply without calls."""
        if not message.tool_calls:
            return message.content
        calls = [CorrectedCall(name=call.name, arguments=dict(call.arguments)) for call in message.tool_calls]
        return cls(content=message.content, tool_calls=calls)

    def to_message(self) -> Message:
        """Message of the assistant."""
        calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in self.tool_calls)
        return Message(role="assistant", content=self.content, tool_calls=calls)


def to_reply(correction: str | CorrectedReply) -> Message:
    """Message of a correction."""
    return Message(role="assistant", content=correction) if isinstance(correction, str) else correction.to_message()


class FeedbackRequest(BaseModel):
    """Feedback on a turn, by the `id` of its response, or on a whole conversation."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    id: _Id | None = None
    """Idempotency key; by default one of the caller and the content, so that a repeated request counts once."""
    conversation_id: _Id
    turn_id: _Id | None = None
    """`id` of the response, with or without `chatcmpl-`."""
    rating: float | None = Field(default=None, ge=0, le=1)
    """0 worst, 1 best."""
    comment: _Text | None = None
    correction: _Text | CorrectedReply | None = None
    """The reply that the turn should have been, a text, or `content` and `tool_calls`; needs `turn_id`."""
    success: bool | None = None
    """Verified outcome of the conversation."""
    expected: Expected | None = None
    """Expected outcome, for rewards."""
    world: dict[str, Any] | None = None
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
        """Record of the log."""
        content = f"{caller.key_hash}\0{self.model_dump_json(exclude={'id'})}"
        given = f"{caller.key_hash}\0{self.id}"
        fields = self.model_dump(exclude={"id", "turn_id", "expected", "correction"})
        return Feedback(
            id=hashlib.sha256((content if self.id is None else given).encode()).hexdigest()[:32],
            time=now,
            turn_id=None if self.turn_id is None else self.turn_id.removeprefix("chatcmpl-"),
            expected=self.expected,
            correction=None if self.correction is None else to_reply(self.correction),
            key=caller.key_hash,
            **fields,
        )


class Receipt(BaseModel):
    """Feedback that is in the log."""

    id: str
    object: str = "feedback"
