"""Why a record is not used, in its own words and in words that it shares with its like."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason that a person reads, and the kind that is counted."""

    reason: str
    kind: str


def refuse(problem: str) -> Refusal:
    """What a reader could not read: what stands before the colon is the kind."""
    return Refusal(reason=problem, kind=problem.partition(":")[0])


def explain(error: ValidationError) -> Refusal:
    """The first fault of what was read.

    user_responses: user turn 1 is empty → kind `user_responses: user turn N is empty`
    """
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return Refusal(reason=f"unknown field: {field}", kind="unknown field")
    message = fault["msg"].removeprefix("Value error, ")
    reason = f"{field}: {message}" if field else message
    return Refusal(reason=reason, kind=_NUMBER.sub("N", reason))
