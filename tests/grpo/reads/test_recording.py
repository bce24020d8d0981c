from __future__ import annotations

import asyncio
import importlib
import os
import sqlite3
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from grpo.reads import recording
from grpo.reads.recorder import changed
from grpo.reads.recording import recorded_reads


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def test_a_file_that_is_read_is_recorded_with_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By open, by os.open, by a relative path, and in asyncio.to_thread; what was read before is not."""
    names = ["open", "os", "relative", "thread", "before"]
    for name in names:
        (tmp_path / name).write_text(name)
    (tmp_path / "before").read_text()
    monkeypatch.chdir(tmp_path)
    with recorded_reads() as recorder:
        (tmp_path / "open").read_text()
        os.close(os.open(tmp_path / "os", os.O_RDONLY))
        Path("relative").read_bytes()
        asyncio.run(asyncio.to_thread((tmp_path / "thread").read_text))
    (tmp_path / "before").read_text()
    reads = recorder.digests()
    assert {path: digest for path, digest in reads.items() if path.startswith(str(tmp_path))} == {
        str(tmp_path / name): _digest(name) for name in names[:-1]
    }


def test_a_folder_that_is_listed_is_recorded_by_its_names(tmp_path: Path):
    """One more file is a change; another content of an unopened file is not."""
    (tmp_path / "a.txt").write_text("a")
    with recorded_reads() as recorder:
        list(tmp_path.iterdir())
    reads = recorder.digests()
    assert list(reads) == [str(tmp_path)]
    (tmp_path / "a.txt").write_text("b")
    assert changed(reads) == []
    (tmp_path / "b.txt").write_text("b")
    assert changed(reads) == [str(tmp_path)]


def test_a_file_that_was_absent_and_appears_has_changed(tmp_path: Path):
    """A list of words that is optional."""
    with recorded_reads() as recorder, pytest.raises(FileNotFoundError):
        (tmp_path / "words.txt").read_text()
    reads = recorder.digests()
    assert reads == {str(tmp_path / "words.txt"): None}
    assert changed(reads) == []
    (tmp_path / "words.txt").write_text("please")
    assert changed(reads) == [str(tmp_path / "words.txt")]


def test_what_is_written_and_what_is_excluded_is_not_an_input(tmp_path: Path):
    """A cache that is written and read, a file below an excluded folder, and the code of Python itself."""
    inside = tmp_path / "home" / "artifact"
    inside.parent.mkdir()
    inside.write_text("x")
    with recorded_reads() as recorder:
        (tmp_path / "cache").write_text("1")
        (tmp_path / "cache").read_text()
        inside.read_text()
        Path(sqlite3.__file__).read_text(encoding="utf-8")
        Path(pytest.__file__).read_text(encoding="utf-8")
    assert recorder.digests(exclude=(tmp_path / "home",)) == {}


LAZY = """
import functools
import os
from pathlib import Path

@functools.cache
def table():
    return (Path(__file__).parent / "table.txt").read_text(), os.environ.get("LAZY_WORDS")

_words = None

def words():
    global _words
    if _words is None:
        _words = (Path(__file__).parent / "words.txt").read_text()
    return _words

def fails():
    table()
    raise ValueError("not yet")
"""


@pytest.fixture
def lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's that reads its files once in a process."""
    (tmp_path / "lazy_words.py").write_text(LAZY)
    for name in ("table", "words"):
        (tmp_path / f"{name}.txt").write_text(name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(recording, "_modules", {})
    monkeypatch.delitem(sys.modules, "lazy_words", raising=False)
    return importlib.import_module("lazy_words")


def _read_by(call: Callable[[], object], *modules: str) -> dict[str, str | None]:
    with recorded_reads(modules) as reads:
        call()
    return reads.digests()


def test_what_a_cached_function_has_read_in_an_earlier_stage_counts_in_later_ones(lazy: Any):
    """The later stage calls it too, but reads nothing. A stage without the module counts nothing."""
    first = _read_by(lazy.table, "lazy_words")
    assert first.keys() >= {"lazy_words:table.txt", "variable LAZY_WORDS"}
    assert _read_by(lazy.table, "lazy_words") == first
    assert _read_by(lambda: None, "lazy_words") == first
    assert _read_by(lambda: None) == {}
    assert _read_by(lazy.words, "lazy_words") == {**first, "lazy_words:words.txt": _digest("words")}


def test_the_content_counts_that_the_function_has_read(lazy: Any, tmp_path: Path):
    """The file has changed since, so that the result of the later stage is not that of the new content."""
    _read_by(lazy.words, "lazy_words")
    (tmp_path / "words.txt").write_text("changed")
    later = _read_by(lazy.words, "lazy_words")
    assert later == {"lazy_words:words.txt": _digest("words")}
    assert changed(later) == ["lazy_words:words.txt"]


def test_what_was_read_before_an_error_or_in_a_check_counts_later(lazy: Any):
    """A stage is tried again, and the checks before a run call rewards and environments."""
    with pytest.raises(ValueError, match="not yet"):
        _read_by(lazy.fails, "lazy_words")
    assert "lazy_words:table.txt" in _read_by(lazy.table, "lazy_words")
    with recorded_reads() as reads:
        lazy.words()
        reads.remember()
    assert "lazy_words:words.txt" in _read_by(lazy.words, "lazy_words")


def test_the_end_of_the_interpreter_is_not_recorded(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """It sets this module's names to None, the first of them first, and may still open files."""
    monkeypatch.setattr(recording, "_EVENTS", None)
    monkeypatch.setattr(recording, "_own", None)
    Path(os.devnull).read_bytes()
    assert capfd.readouterr().err == ""
