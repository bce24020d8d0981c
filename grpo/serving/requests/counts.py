"""Counts of a service, which `grpo.serving.metrics` collects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from grpo.log.records import TurnStatus


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts since the start."""

    turns: Counter[TurnStatus] = field(default_factory=Counter)
    """Turns in the log, by status."""
    joined: Counter[str] = field(default_factory=Counter)
    """Requests by the way in which they were joined to a conversation."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused requests by reason."""
    calls: Counter[str] = field(default_factory=Counter)
    """Tool calls of answered turns: parsed calls, repaired calls among these, and turns with a malformed call."""
    errors: int = 0
    """Turns that ended with an error of the agent, engine or model."""
    unlogged: int = 0
    """Turns that the log refused, so that their requests failed."""
    unshared: int = 0
    """Turns that the shared database refused or did not take in time, so that their requests failed."""
