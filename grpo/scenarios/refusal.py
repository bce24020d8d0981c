"""Why a record is not used, in its own words and in words that it shares with its like."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

from grpo.scenarios.data_errors import error_text, excerpt

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineReason:
    """The reason that a person reads, and the kind that is counted."""

    reason: str
    kind: str


def reason_from_problem(problem: str) -> QuarantineReason:
    """Refusal by a reader: what stands before the colon is the kind."""
    return QuarantineReason(reason=excerpt(problem), kind=excerpt(problem.partition(":")[0]))


def reason_from_error(error: Exception) -> QuarantineReason:
    """Refusal by what validation or storage raised: the first fault.

    user_responses: user turn 1 is empty → kind `user_responses: user turn N is empty`
    """
    if not isinstance(error, ValidationError):
        kind = "cannot be stored as JSON"
        return QuarantineReason(reason=f"{kind}: {error_text(error)}", kind=kind)
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = excerpt(".".join(str(part) for part in fault["loc"]))
    if fault["type"] == "extra_forbidden":
        return QuarantineReason(reason=f"unknown field: {field}", kind="unknown field")
    message = fault["msg"].removeprefix("Value error, ")
    reason = f"{field}: {message}" if field else message
    return QuarantineReason(reason=reason, kind=_NUMBER.sub("N", reason))
