"""Write-ahead log of a served policy: a record is durable before it is acknowledged.

    append ─┐                                       ┌─ acknowledged
    append ─┼→ queue → writer: one write, fdatasync ┼─ acknowledged      segments/….log ──compaction──→ turns/DAY/….parquet
    append ─┘                                       └─ acknowledged                                      feedback/DAY/….parquet
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from grpo.scenarios.served.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Counts of this process since the log was opened."""

    records: int
    """Records that are durable."""
    refused: int
    """Records that could not be written."""
    syncs: int
    bytes: int
    waiting: int
    """Records that are not durable yet."""
    compaction_error: str | None
    """Error of the last compaction; None if it succeeded."""


class ServingLog:
    """Log in one folder, which several processes may write to; its readers are in `grpo.scenarios.served`.

    `async with ServingLog(folder) as log` starts the writer's thread.
    """

    def __init__(
        self,
        folder: Path,
        *,
        retention_days: int | None = None,
        segment_bytes: int = 32 * 2**20,
        segment_s: float = 3600.0,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def append(self, record: Record) -> None:
        """Write a record; returns when it is durable.

        Raises `StorageError` where it could not be written, for example on a full disk: it is not in the log then.
        """
        raise NotImplementedError

    async def erase(self, *, user: str | None = None, conversation_id: str | None = None) -> int:
        """Erase all turns and feedback of a user's conversations, or of one conversation; returns their number.

        Other processes that write to the folder begin new segments within a second. Raises `StorageError` where one of
        them holds its segment for longer than 30 s.
        """
        raise NotImplementedError

    def stats(self) -> LogStats:
        """Counts, callable from any thread."""
        raise NotImplementedError
