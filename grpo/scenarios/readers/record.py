"""A record: what a reader found at one place of a source, usable or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """One record of a source. Exactly one of `data` and `problem` is None."""

    source: str
    """The file, folder or function that it was read from."""
    line: int
    """Where it starts: its line in a text file, its number (from 1) elsewhere."""
    data: dict[str, Any] | None
    """The fields of a scenario, not validated."""
    raw: str = ""
    """The record as it stands in a text source; empty where `data` says the same."""
    problem: str | None = None
    """Why the record cannot be read. What stands before a colon is the same for all records with this trouble."""
