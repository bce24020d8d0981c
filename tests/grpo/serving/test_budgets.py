"""Token budgets in a file: shared, private, and an error where the file is damaged."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.serving.access.budgets import TokenBudgets


def _take(path: Path, times: int) -> None:
    budgets = TokenBudgets(path)
    for _ in range(times):
        budgets.take("shop", 1, {"2026-11": 150})
    budgets.close()


def test_tokens_are_taken_of_all_periods_or_of_none(tmp_path: Path):
    """The month has room, the day has not: neither changes."""
    budgets = TokenBudgets(tmp_path / "budgets.db")
    assert budgets.take("shop", 6, {"2026-11-22": 10, "2026-11": 100}) is None
    assert budgets.take("shop", 5, {"2026-11": 100, "2026-11-22": 10}) == "2026-11-22"
    assert budgets.take("other", 10, {"2026-11-22": 10}) is None
    assert [budgets.used("shop", period) for period in ("2026-11-22", "2026-11", "2026-12")] == [6, 6, 0]
    budgets.add("shop", -4, ("2026-11-22", "2026-11"))
    assert [budgets.used("shop", period) for period in ("2026-11-22", "2026-11")] == [2, 2]
    budgets.close()


def test_processes_share_a_budget_exactly(tmp_path: Path):
    """Four take 50 each of 150."""
    path = tmp_path / "budgets.db"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_take, args=(path, 50)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    budgets = TokenBudgets(path)
    assert budgets.used("shop", "2026-11") == 150
    budgets.close()


def test_the_file_is_private_and_nothing_else_is_left(tmp_path: Path):
    """Also the files that SQLite writes beside it."""
    budgets = TokenBudgets(tmp_path / "budgets.db")
    budgets.take("shop", 1, {"2026-11": 1})
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert {path.stat().st_mode & 0o077 for path in files} == {0}
    budgets.close()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["budgets.db"]


@pytest.mark.parametrize("damage", ["empty", "text", "torn", "overwritten", "other"])
def test_a_damaged_file_is_an_error(tmp_path: Path, damage: str):
    """It is never taken for a new one: every budget would start at 0."""
    path = tmp_path / "budgets.db"
    budgets = TokenBudgets(path)
    for k in range(2000):
        budgets.add(f"caller-{k}", 1, ("2026-11",))
    budgets.close()
    content = path.read_bytes()
    if damage == "other":
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE other (x)")
        connection.close()
    else:
        path.write_bytes(
            {
                "empty": b"",
                "text": b"no database",
                "torn": content[: len(content) // 2],
                "overwritten": content[:4096] + b"\xff" * 4096 + content[8192:],
            }[damage]
        )
    with pytest.raises(DataError, match=r"token budgets in .*budgets\.db cannot be used: .*\. Restore the file"):
        TokenBudgets(path)
