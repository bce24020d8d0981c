"""Callers of the server: name, scopes and limits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from grpo.config.serving import CallerLimits

Scope = Literal["chat", "feedback", "outcomes", "log", "metrics", "rollout", "admin"]
SCOPES: tuple[Scope, ...] = ("chat", "feedback", "outcomes", "log", "metrics", "rollout", "admin")


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
