"""Token budgets per day and month in an SQLite file, which processes of one machine share and restarts keep.

    usage   caller (hash), period ("2026-11-22" or "2026-11", UTC), tokens

Tokens are taken before a request and refunded after it. So a crash may count too many tokens, but never too few.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from grpo.errors import DataError
from grpo.storage.files import storage_errors
from grpo.storage.locks import scratch_path

_SCHEMA = (
    "CREATE TABLE usage (caller TEXT, period TEXT, tokens INTEGER NOT NULL, PRIMARY KEY (caller, period)) WITHOUT ROWID"
)
_ADD = "INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT (caller, period) DO UPDATE SET tokens = tokens + excluded.tokens"


class TokenBudgets:
    """Tokens used per caller and period.

    Raises `DataError` if the file is damaged, and `StorageError` if the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors():
            if not path.exists():
                _make(path)
            if path.stat().st_size == 0:
                raise sqlite3.DatabaseError("the file is empty")
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
            )
            try:
                self._open()
            except BaseException:
                self._connection.close()
                raise

    def take(self, caller: str, tokens: int, budgets: Mapping[str, int]) -> str | None:
        """Take tokens from all periods, or return the first period whose budget is too small and take none."""
        with self._transaction():
            for period, budget in budgets.items():
                if self._used(caller, period) + tokens > budget:
                    return period
            self._connection.executemany(_ADD, [(caller, period, tokens) for period in budgets])
        return None

    def add(self, caller: str, tokens: int, periods: tuple[str, ...]) -> None:
        """Add tokens to periods. A refund is a negative number."""
        with self._transaction():
            self._connection.executemany(_ADD, [(caller, period, tokens) for period in periods])

    def used(self, caller: str, period: str) -> int:
        """Tokens that a caller has used in a period, including the tokens that running requests have taken."""
        with self._errors():
            return self._used(caller, period)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _open(self) -> None:
        problem = self._connection.execute("PRAGMA quick_check").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute("SELECT caller, period, tokens FROM usage LIMIT 1")

    def _used(self, caller: str, period: str) -> int:
        row = self._connection.execute("SELECT tokens FROM usage WHERE caller = ? AND period = ?", (caller, period))
        return int((row.fetchone() or (0,))[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.rollback()
                raise
            self._connection.commit()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with storage_errors(str(self._path)):
                yield
        except sqlite3.Error as error:
            raise DataError(
                f"token budgets in {self._path} cannot be used: {error}. Restore the file, or remove it and the "
                "budgets of the running day and month start at 0"
            ) from error


def _make(path: Path) -> None:
    """Make the file atomically, readable only by its owner. If another process was first, its file is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch_path(path.parent / f".{path.name}.new") as partial:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(partial)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")  # kept in the file: two processes that set it at once fail
            connection.execute(_SCHEMA)
            connection.commit()
        try:
            os.link(partial, path)
        except FileExistsError:
            return
