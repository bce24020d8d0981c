"""Callers of the server: name, scopes and limits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Scope = Literal["chat", "feedback", "outcomes", "log", "metrics", "rollout", "admin"]
SCOPES: tuple[Scope, ...] = ("chat", "feedback", "outcomes", "log", "metrics", "rollout", "admin")


class CallerLimits(BaseModel):
    """Limits of one caller. None means unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests admitted in any 60 seconds."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Prompt and completion tokens of the requests admitted in any 60 seconds."""
    parallel: int | None = Field(default=None, ge=1)
    """Requests that run at once."""
    tokens_per_day: int | None = Field(default=None, ge=1)
    """Token budget of a day in UTC, which survives a restart."""
    tokens_per_month: int | None = Field(default=None, ge=1)
    """Token budget of a calendar month in UTC, which survives a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Authenticated caller of a request."""

    name: str
    """Name of the key, or subject of the token."""
    key_hash: str
    """sha256 of the key, or of the token's issuer and subject. Logs and limits identify the caller by it."""
    scopes: frozenset[Scope]
    limits: CallerLimits = field(default_factory=CallerLimits)

    @property
    def listed(self) -> str:
        """Scopes as a text for a message."""
        return ", ".join(sorted(self.scopes)) or "none"


def sha256(text: str) -> str:
    """Hexadecimal sha256 of a text. Bytes that could not be decoded are hashed unchanged."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
