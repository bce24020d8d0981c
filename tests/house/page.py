"""The table of measures in docs/internals/house.md, before and after."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.page import Table, commit, replace_results
from tests.house.measures import Measure, measures
from tests.places import INTERNALS, ROOT

PAGE = INTERNALS / "house.md"
BEFORE = "f7f25268"
"""The commit that was reviewed."""
HEADING = "## Measures"
HEAD = ("measure", f"before ({BEFORE})", "now", "bound")


def table() -> Table:
    """Both checkouts, measured by the same code."""
    return Table(head=HEAD, rows=tuple(_row(*pair) for pair in zip(_reviewed(), measures(ROOT), strict=True)))


def write(rows: Table) -> None:
    """Replace the table of the page."""
    text = f"""
Written by `python -m tests.house` at commit {commit()}. The same code measures both checkouts: the reviewed
one and this one. Source is what is below `grpo`, `tasks` and `flows`. `tests/test_house.py` keeps a measure that has a
bound. The bounds on words are at most twice the median of five other projects (prime-rl, verifiers, TRL, torchtitan's
experiments and SkyRL)."""
    replace_results(PAGE, HEADING, text, rows)


def _reviewed() -> list[Measure]:
    with TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        return measures(Path(folder))


def _row(before: Measure, now: Measure) -> tuple[str, ...]:
    return now.name, before.value, now.value, now.bound
