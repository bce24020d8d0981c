"""Settings of the service of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Limits of the whole server, and the consent and licence that turns are logged with."""

    max_requests: int = 256
    """Turns that may run or wait."""
    max_tokens: int = 1_000_000
    """Tokens of the conversations and replies of these turns."""
    conversation_tokens: int = 2_000_000
    """Most tokens of the conversations in memory."""
    stream_interval_s: float = 0.04
    """Shortest time between two events of a streamed reply. Tokens that come in this time share one event."""
    waiting_characters: int = 16 * 2**20
    """Characters of requests that may wait to be read. One key may have half of them. Requests above it get 503."""
    socket_idle_s: float = 600.0
    """Time after which a WebSocket without a request is closed."""
    consent: str = ""
    """Use that users agreed to, e.g. `training`. Empty for none."""
    licence: str = ""
