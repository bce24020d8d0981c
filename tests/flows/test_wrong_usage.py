"""The real command with wrong input of every kind; `python -m tests.wrong_usage` prints what each ends with."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.places import ROOT
from tests.wrong_usage import PAGE, Outcome, faults
from tests.wrong_usages import USAGES, Usage


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The end of every usage in the table, by its name."""
    path = tmp_path_factory.mktemp("usages") / "outcomes.json"
    command = [sys.executable, "-m", "tests.wrong_usage", "--json", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    return {one["name"]: Outcome(**{**one, "left": tuple(one["left"])}) for one in json.loads(path.read_text())}


@pytest.mark.parametrize("usage", USAGES, ids=lambda usage: usage.name)
def test_a_wrong_usage_ends_with_its_exit_code_and_one_message(usage: Usage, outcomes: dict[str, Outcome]):
    """Value, place and remedy are in the text; no traceback, no second fault, no line twice, nothing left behind."""
    outcome = outcomes[usage.name]
    assert not faults(usage, outcome), outcome.stdout + outcome.stderr


def test_the_table_has_a_hundred_usages_and_each_name_once():
    """A name that stands twice would hide an outcome."""
    assert len({usage.name for usage in USAGES}) == len(USAGES) >= 100


def test_the_page_counts_the_usages_of_the_table():
    """Rows by group, and all of them as they should be."""
    row = re.search(r"^\| all \| (\d+) \| .* \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None
    assert (int(row[1]), int(row[2])) == (len(USAGES), 0)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"code": 1}, "exit code 1, expected 2"),
        ({"stderr": "else"}, "lacks 'the reason'"),
        ({"stderr": "the reason\nTraceback (most recent call last):\n"}, "a traceback"),
        ({"stderr": "here is the reason\nhere is the reason\n"}, "twice: 'here is the reason'"),
        ({"stderr": "the reason s3cret"}, "contains 's3cret'"),
        ({"left": ("x.db",)}, "left x.db"),
    ],
    ids=["code", "text", "traceback", "twice", "never", "left"],
)
def test_each_way_to_end_badly_is_noticed(changes: dict[str, object], fault: str):
    """The check itself can fail, in each of its parts."""
    usage = Usage(group="g", name="n", arguments=(), code=2, messages=("the reason",))
    good = {"name": "n", "code": 2, "stdout": "", "stderr": "the reason", "seconds": 0.0, "left": ()}
    assert faults(usage, Outcome(**good)) == []
    assert faults(usage, Outcome(**{**good, **changes})) == [fault]
