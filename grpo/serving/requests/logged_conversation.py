"""Requests of `POST /v1/log`: whole conversations of another server, for a team that serves its model itself.

The key needs the scope `log`. The log names a conversation by an id that is made from the key and from the name that
the request gives it. Therefore a repeated request counts once, and a key cannot add to the conversations of another
key. Feedback on the conversation is accepted later, as on one that this server had.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from grpo.errors import DataError
from grpo.log.conversation import LoggedConversation, LoggedIds, append_conversation, time_fault
from grpo.scenario import CATEGORY_CHARACTERS, Domain, Expected
from grpo.serving.access.callers import Caller
from grpo.serving.access.limits import Limiter
from grpo.serving.protocol.api_errors import APIError, invalid_request, overloaded
from grpo.serving.protocol.chat_messages import ChatMessage, to_logged_messages
from grpo.serving.protocol.chat_request import MAX_MESSAGES
from grpo.serving.protocol.chat_tools import MAX_TOOLS, ToolPart
from grpo.serving.protocol.json_bounds import BoundedFields
from grpo.serving.protocol.request_parts import without_null_fields
from grpo.serving.requests.feedback import REPAIR_S, FeedbackText, bounded, counted, refuse_outcomes
from grpo.serving.requests.turn_log import TurnLog

_FEEDBACK = ("rating", "comment", "success", "expected", "world")
_LABELS = ("category", "domain", "consent", "licence")


class LogRequest(BoundedFields):
    """Conversation that another server had, with the messages of OpenAI's chat API."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    id: str = Field(min_length=1, max_length=256)
    """Name of the conversation at the other server. If it is sent again under this name, it counts once."""
    model: str = Field(min_length=1, max_length=256)
    """Model that answered: name and version in the registry, `support-desk/3`."""
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1, max_length=MAX_MESSAGES)
    """All messages from the first one on, with at least one reply of the assistant."""
    time: AwareDatetime | None = None
    """Start of the conversation, with its time zone. By default the time of the request."""
    tools: Annotated[list[ToolPart], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    """Tools that the agent could call."""
    user: str | None = Field(default=None, max_length=512)
    """Name of the user, of which the log keeps a salted hash."""
    consent: str = Field(default="", max_length=200)
    """Use that the user agreed to, for example `training`. Empty for none."""
    licence: str = Field(default="", max_length=200)
    category: str = Field(default="general", min_length=1, max_length=CATEGORY_CHARACTERS)
    domain: Domain = "general"
    rating: float | None = Field(default=None, ge=0, le=1)
    """0 worst, 1 best."""
    comment: FeedbackText | None = None
    success: bool | None = None
    """Verified outcome of the conversation."""
    expected: Annotated[Expected, AfterValidator(bounded)] | None = None
    """Expected outcome, for rewards."""
    world: Annotated[dict[str, Any], AfterValidator(bounded)] | None = None
    """Records that the agent's tools read and changed, as they were at the start of the conversation."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return without_null_fields(value)

    def to_conversation(self, *, now: datetime) -> LoggedConversation:
        """Conversation for the log. Raises `APIError` 400 if its messages or its time cannot be logged."""
        if self.time is not None and (fault := time_fault(self.time, now=now)) is not None:
            raise invalid_request(f"time is {fault}", param="time")
        return LoggedConversation(
            id=self.id,
            time=now if self.time is None else self.time,
            model=self.model,
            messages=to_logged_messages(self.messages),
            tools=tuple(tool.to_tool() for tool in self.tools or ()),
            user=self.user or "",
            **{name: getattr(self, name) for name in (*_LABELS, *_FEEDBACK)},
        )


class LogReceipt(BaseModel):
    """Answer to a conversation that is in the log."""

    object: str = "logged_conversation"
    conversation_id: str
    """Id in this log, for feedback and for erasures."""
    turn_ids: tuple[str, ...]
    """Ids of the turns, one per reply, for feedback on a single reply."""


async def log_conversation(
    body: LogRequest, caller: Caller, log: TurnLog, limiter: Limiter, *, now: datetime
) -> LogReceipt:
    """Check a conversation and log it durably. It counts as a request of its size, also if it is refused.

    Raises `APIError` 400 if its messages or its time cannot be logged, 403 if it has outcomes but the key lacks their
    scope, 410 if it or its user was erased, and 503 if that is not known. Errors of the limiter and the log are passed
    on.
    """
    async with counted(body, caller, limiter):
        refuse_outcomes(body, caller)
        ids = await _append(body.to_conversation(now=now), caller, log, now=now)
        if ids is None:
            message = "the conversation or its user was erased, so that it is not logged again"
            raise APIError(410, message, code="conversation_erased")
    return LogReceipt(conversation_id=ids.conversation_id, turn_ids=ids.turn_ids)


async def _append(conversation: LoggedConversation, caller: Caller, log: TurnLog, *, now: datetime) -> LoggedIds | None:
    try:
        return await append_conversation(
            log, conversation, key=caller.key_hash, scopes=tuple(sorted(caller.scopes)), now=now
        )
    except DataError as error:
        message = "conversations are refused until the log is repaired, because an erasure in it cannot be read"
        raise overloaded(message, retry_after_s=REPAIR_S) from error
