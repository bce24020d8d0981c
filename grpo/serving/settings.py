"""Settings of the service of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Limits of the server as a whole, and what the log states of every turn."""

    max_requests: int = 256
    """Turns in progress and waiting."""
    max_tokens: int = 1_000_000
    """Tokens of their conversations and replies."""
    conversation_tokens: int = 2_000_000
    """Tokens of the conversations in memory."""
    stream_interval_s: float = 0.04
    """Time between two events of a streamed reply at least; tokens that come meanwhile share an event."""
    waiting_characters: int = 16 * 2**20
    """Characters of requests that wait to be read, of which one key may have half; more get 503."""
    socket_idle_s: float = 600.0
    """Time after which a WebSocket without a request is closed."""
    consent: str = ""
    """Uses that users agreed to, such as `training`; empty for none."""
    licence: str = ""
