"""Counts of a service, which `grpo.serving.metrics` collects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from grpo.scenarios.served.records import TurnStatus


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts since the start."""

    turns: Counter[TurnStatus] = field(default_factory=Counter)
    """Turns in the log, by status."""
    joined: Counter[str] = field(default_factory=Counter)
    """Requests, by how they were joined to a conversation."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were not admitted, by reason."""
    calls: Counter[str] = field(default_factory=Counter)
    """Tool calls of answered turns: parsed, of these repaired, and turns with a malformed one."""
    errors: int = 0
    """Turns that ended by an error of agent, engine or model."""
    unlogged: int = 0
    """Turns that the log refused: their requests failed."""
    unshared: int = 0
    """Turns that the shared database refused, or did not take in time: their requests failed."""
