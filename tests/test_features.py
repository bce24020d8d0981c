"""docs/internals/features.md says where each capability lives and which test shows it; these tests keep it true."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.places import INTERNALS, ROOT

PAGE = INTERNALS / "features.md"
SECTIONS = {
    "A": 27,
    "E": 15,
    "T": 11,
    "R": 31,
    "V": 10,
    "L": 4,
    "G": 30,
    "N": 6,
    "H": 4,
    "D": 5,
    "X": 4,
    "O": 24,
    "Z": 2,
}
"""Capabilities of each section are numbered from 1 on."""
ELSEWHERE = {"A9"}
"""A9 does not exist."""


def rows() -> list[tuple[str, str, str]]:
    """Id, places and tests of each row."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if re.fullmatch(r"[A-Z]+\d+", cells[0]):
            found.append((cells[0], cells[2], cells[3]))
    return found


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def _functions(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name"))


def test_every_capability_has_one_row():
    """None is left out, none stands twice."""
    wanted = {f"{section}{k}" for section, count in SECTIONS.items() for k in range(1, count + 1)} - ELSEWHERE
    ids = [row[0] for row in rows()]
    assert len(ids) == len(set(ids))
    assert wanted <= set(ids)


def test_a_capability_lives_where_the_table_says():
    """A row names at least one place, and each is a file or folder."""
    named = {identity: _quoted(places) for identity, places, _ in rows()}
    assert [identity for identity, places in named.items() if not places] == []
    missing = [
        (identity, place) for identity, places in named.items() for place in places if not (ROOT / place).exists()
    ]
    assert missing == []


def test_a_capability_is_shown_by_a_test_that_exists():
    """`tests/….py::name`, at least one a row."""
    shown = {identity: _quoted(tests) for identity, _, tests in rows()}
    assert [identity for identity, tests in shown.items() if not tests] == []
    listed = [(identity, test) for identity, tests in shown.items() for test in tests]
    assert [(identity, test) for identity, test in listed if not _exists(test)] == []


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and name in _functions(ROOT / file)
