"""What a user's code reads is part of a stage's cache, in whatever way it reads it."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from grpo.config.rewards import RewardComponent
from grpo.identity.user_code import source_texts, user_code_digests
from grpo.reads import recording
from grpo.user_objects import load_object
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage
from tests.reading import CHANGES, SUM, Package, put_reading


class Total(StageResult):
    """Sum of what was read."""

    total: int


computed: list[int] = []


@stage
def add_up(reward: RewardComponent, store: str) -> Total:
    """Read in every way, and add the numbers up."""
    total = sum(read() for read in load_object(str(reward.reference).partition(":")[0] + ":WAYS").values())
    computed.append(total)
    return Total(total=total)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Package:
    """A package on the import path under a name of its own, for a process imports a module once."""
    name = f"reading_{abs(hash(request.node.name))}"
    monkeypatch.syspath_prepend(tmp_path / "code")
    for variable in ("READ_IN_STAGE", "READ_AT_IMPORT", "READ_IN_C"):
        monkeypatch.setenv(variable, "0")
        monkeypatch.delenv(variable)
    return put_reading(tmp_path / "code", name)


def _run(package: Package, store: Path, monkeypatch: pytest.MonkeyPatch, *, declared: bool = True) -> int:
    """Run the stage as a new process would, which has imported nothing of the user's."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]
        recording._modules.pop(name, None)
    user_code_digests.cache_clear()
    source_texts.cache_clear()
    for name, value in package.variables.items():
        monkeypatch.setenv(name, value)
    reads = tuple(package.reads) if declared else ()
    reward = RewardComponent(kind="python", object=f"{package.name}.numbers:Reading", weight=1.0, reads=reads)
    return add_up.fn(reward, str(store)).total


@pytest.mark.parametrize("way", CHANGES)
def test_what_is_read_in_this_way_is_part_of_the_result(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
):
    """Unchanged it is a hit; changed, the stage is computed with the new number, and is a hit again."""
    change, growth = CHANGES[way]
    computed.clear()
    assert [_run(package, tmp_path / "store", monkeypatch) for _ in range(2)] == [SUM, SUM]
    assert computed == [SUM]
    change(package)
    assert [_run(package, tmp_path / "store", monkeypatch) for _ in range(2)] == [SUM + growth] * 2
    assert computed == [SUM, SUM + growth]


def test_a_project_that_is_moved_as_a_whole_keeps_its_cache(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Reads are named from the folder of the code; in the new place they count, and those of the old one do not."""
    computed.clear()
    _run(package, tmp_path / "code" / "store", monkeypatch)
    (tmp_path / "code").rename(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    sys.path_importer_cache.clear()
    moved = Package(tmp_path / "elsewhere" / package.name, package.outside, {})
    assert _run(moved, tmp_path / "elsewhere" / "store", monkeypatch) == SUM
    assert computed == [SUM]
    moved.write("thread.txt", 5)
    assert _run(moved, tmp_path / "elsewhere" / "store", monkeypatch) == SUM + 4
    assert computed == [SUM, SUM + 4]


def test_what_cannot_be_seen_is_said_once_unless_reads_are_declared(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A program and C code: the warning has the remedy, and the values of variables are nowhere."""
    with caplog.at_level(logging.WARNING):
        _run(package, tmp_path / "declared", monkeypatch)
        assert "reads through" not in caplog.text
        package.variables["READ_IN_STAGE"] = "31337"
        for number in (1, 2):
            package.write("size.txt", number * 10)
            _run(package, tmp_path / "store", monkeypatch, declared=False)
    ways = [record.getMessage() for record in caplog.records if "reads through" in record.getMessage()]
    assert len(ways) == 2
    assert all("reads: [FILE, $VARIABLE]" in text for text in ways)
    assert "C code through ctypes" in ways[0]
    assert "the program cat" in ways[1]
    kept = "".join(path.read_text() for path in (tmp_path / "store" / "results").iterdir())
    assert "variable READ_IN_STAGE" in kept
    assert "31337" not in kept
    assert os.environ["READ_IN_STAGE"] == "31337"
