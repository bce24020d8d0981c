"""Records of the serving log: turns that a policy was asked for, and feedback on them.

    request    system S, user U1          → turn 1, parent None    turns S U1 | A1
    request    user U2                    → turn 2, parent 1       turns U2 | A2
    request    the result T of a call     → turn 3, parent 2       turns T | A3

A turn has only the messages and tokens that it adds to its conversation, but its spans count from the conversation's
first token. The turns of a chain of parents join to a `Trajectory`, see `grpo.log.join`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from types import NoneType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenario import Expected
from grpo.trajectories import Turn, equal_fields

TurnStatus = Literal["answered", "aborted", "failed", "erased"]
"""Aborted: the client went away or the server stopped. Failed: an error, or a turn that was not begun. Erased: its user
or conversation was erased while it ran, so that nothing of it is kept."""
STATUSES: tuple[str, ...] = get_args(TurnStatus)
CONSTRAINED = "constrained"
"""Key of `metadata` with the kinds of constraints, if the turn was sampled only from tokens that a grammar allowed. Its
log-probabilities come from that restricted distribution, so they are not the policy's own."""
COMPLETION = "completion"
"""`metadata.kind` of the completion of a raw prompt. A program wrote the prompt, so it belongs to no conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTurn:
    """One turn of a served policy, answered or not."""

    id: str
    """Unique in the log: a second record with this id is the same turn."""
    request_id: str
    """Request that asked for it. All choices under `n` share it."""
    conversation_id: str
    parent: str | None
    """Id of the turn that it continues. None for the first turn of a conversation."""
    time: datetime
    """Receipt of the request."""
    status: TurnStatus
    reason: str
    """Finish reason, or the reason why it was not answered."""
    model: str
    """Name and version, `support-desk/3`."""
    policy_hash: str
    renderer_hash: str
    arm: str = "champion"
    """Group of the conversation in a comparison of versions."""
    probability: float = 1.0
    """Probability with which the conversation was assigned to the arm."""
    turns: tuple[Turn, ...]
    """Messages that it adds: system, user and tool messages, calls of the agent's own tools with their results, and the
    reply last."""
    token_ids: NDArray[np.int32]  # [tokens that it adds]
    loss_mask: NDArray[np.bool_]  # [tokens that it adds]
    sampler_logprobs: NDArray[np.float32]  # [tokens that it adds] 0 outside the loss mask, NaN if unknown
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that the client offered: `{"name", "description", "parameters"}`."""
    temperature: float
    top_p: float = 1.0
    seed: int
    choice: int = 0
    """Index under `n`."""
    first_token_s: float | None = None
    """Time to first token. None if there was no token."""
    latency_s: float
    key: str = ""
    """Hash of the API key."""
    user: str = ""
    """Hash of the user's name. Empty if the client names none."""
    consent: str = ""
    """Uses that the user agreed to, as configured. Empty for none."""
    licence: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The client's own labels. `category` and `domain` become labels of the conversation."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_time(self.time, f"turn {self.id}")
        if not self.id or not self.conversation_id or not self.request_id:
            raise DataError(f"turn {self.id!r} of conversation {self.conversation_id!r} needs ids that are not empty")
        if self.status not in STATUSES:
            raise DataError(f"turn {self.id}: status {self.status!r} is unknown. Use one of {', '.join(STATUSES)}")
        lengths = (len(self.token_ids), len(self.loss_mask), len(self.sampler_logprobs))
        if len(set(lengths)) != 1:
            raise DataError(
                f"turn {self.id}: token_ids, loss_mask and sampler_logprobs have lengths {lengths}. They must agree"
            )
        numbers = (self.probability, self.temperature, self.top_p, self.latency_s, self.first_token_s or 0.0)
        if not all(map(math.isfinite, numbers)):
            raise DataError(f"turn {self.id}: probability, temperature, top_p and latencies must be finite: {numbers}")
        if self.status == "answered" and (not self.turns or self.turns[-1].message.role != "assistant"):
            raise DataError(f"turn {self.id} is answered and does not end with a reply")

    @property
    def is_completion(self) -> bool:
        """True for the completion of a raw prompt."""
        return self.metadata.get("kind") == COMPLETION

    @property
    def constrained(self) -> str:
        """Kinds of the constraints that the reply was sampled under. Empty for a free reply."""
        return self.metadata.get(CONSTRAINED, "")

    def __eq__(self, other: object) -> bool:
        """Compare all fields. Two NaN log-probabilities are equal."""
        if not isinstance(other, ServedTurn):
            return NotImplemented
        return equal_fields(self, other)

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Feedback on a turn or a whole conversation. A field is None if it was not given."""

    id: str
    """Idempotency key: a second record with this id is the same feedback."""
    time: datetime
    conversation_id: str
    turn_id: str | None = None
    """The turn. None for the whole conversation."""
    rating: float | None = None
    """0 worst, 1 best."""
    comment: str | None = None
    correction: Message | None = None
    """The reply that the turn should have been, with its tool calls."""
    success: bool | None = None
    """Verified outcome of the conversation."""
    expected: Expected | None = None
    """Expected outcome, for rewards."""
    world: Mapping[str, Any] | None = None
    """State at the start of the conversation of the records that the agent's tools read and changed."""
    key: str = ""
    """Hash of the API key."""
    source: str = "api"
    """Origin: `api`, `mlflow`."""
    scopes: tuple[str, ...] = ()
    """Scopes of the key when the feedback was accepted. With `admin` it may be about the conversations of other keys,
    and with `outcomes` it may give `success`, `expected` and `world`."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_time(self.time, f"feedback {self.id}")
        if not self.id or not self.conversation_id:
            raise DataError(f"feedback {self.id!r} on {self.conversation_id!r} needs ids that are not empty")
        if self.rating is not None and not 0 <= self.rating <= 1:
            raise DataError(f"feedback {self.id}: rating {self.rating} is outside of 0 to 1")
        if self.correction is not None and self.correction.role != "assistant":
            raise DataError(f"feedback {self.id}: the correction is a {self.correction.role} message. Give a reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """Erasure of all records of these users and conversations until `time`. Names are kept only as their sha256."""

    time: datetime
    users: frozenset[str] = frozenset()
    conversations: frozenset[str] = frozenset()
    callers: frozenset[str] = frozenset()
    """`KEY_HASH/USER_HASH` of the erased turns, so that agents can forget what they remember of these callers."""


OUTCOMES = ("success", "expected", "world")
"""Fields of feedback that decide what counts as right. A key needs the scope `outcomes` to give them."""
Record = ServedTurn | Feedback
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, NoneType),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, NoneType),
    "bool | None": (bool, NoneType),
    "Message | None": (Message, NoneType),
    "Mapping[str, str]": (Mapping,),
    "tuple[str, ...]": (tuple,),
    "Mapping[str, Any] | None": (Mapping, NoneType),
}


def _check_types(record: Record) -> None:
    """Raise `DataError` if a field has a wrong type, because another program may have written the record."""
    for part in fields(record):
        value, types = getattr(record, part.name), _TYPES.get(str(part.type))
        if types is not None and not isinstance(value, types):
            raise DataError(f"{part.name} of a {type(record).__name__} is {part.type}, got {type(value).__name__}")


def _check_time(time: datetime, place: str) -> None:
    if time.tzinfo is None:
        raise DataError(f"{place}: time {time} has no time zone. Use UTC")
