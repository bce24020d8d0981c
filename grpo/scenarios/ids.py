"""Which ids are taken, and by which record."""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import Self

from grpo.errors import StorageError


class SeenIds:
    """Ids with their places, in a temporary file on disk: memory does not grow with their number."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # SQLite deletes a nameless database on closing
        self._database.executescript("""
            PRAGMA journal_mode = OFF;
            PRAGMA synchronous = OFF;
            PRAGMA cache_size = -32000; -- KiB
            CREATE TABLE taken (id TEXT PRIMARY KEY, source TEXT, line INTEGER) WITHOUT ROWID;
            BEGIN;
        """)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, scenario_id: str, source: str, line: int) -> str | None:
        """Take a free id and return None, or return the place `source:line` that has it."""
        try:
            cursor = self._database.execute("INSERT OR IGNORE INTO taken VALUES (?, ?, ?)", (scenario_id, source, line))
        except sqlite3.OperationalError as error:
            raise StorageError(f"ids cannot be kept on disk: {error}; free space or set TMPDIR elsewhere") from error
        if cursor.rowcount == 1:
            return None
        taken = self._database.execute("SELECT source, line FROM taken WHERE id = ?", (scenario_id,)).fetchone()
        return f"{taken[0]}:{taken[1]}"
