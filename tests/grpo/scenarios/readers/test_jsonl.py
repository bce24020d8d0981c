"""JSON lines: what is a record, and what is one that cannot be read."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.scenarios.readers.jsonl import read_jsonl
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.readers.source_files import LONGEST_LINE


def records(tmp_path: Path, content: bytes) -> list[SourceRecord]:
    """What is read from a file with these bytes."""
    path = tmp_path / "source.jsonl"
    path.write_bytes(content)
    return list(read_jsonl(path))


def test_a_line_is_a_record_at_its_place(tmp_path: Path) -> None:
    """Each record knows its file and its line, counted from 1."""
    first, second = records(tmp_path, b'{"id": "a"}\n{"id": "b"}\n')
    assert (first.line, first.data, second.line, second.data) == (1, {"id": "a"}, 2, {"id": "b"})
    assert first.source == str(tmp_path / "source.jsonl")


def test_blank_lines_are_no_records_but_count_as_lines(tmp_path: Path) -> None:
    """Blank lines between records are skipped, and places stay those of an editor."""
    assert [record.line for record in records(tmp_path, b'\n{"id": "a"}\n  \n\n{"id": "b"}')] == [2, 5]


def test_a_broken_line_is_a_record_with_a_problem(tmp_path: Path) -> None:
    """Half a JSON object does not stop the lines after it."""
    broken, good = records(tmp_path, b'{"id": "a"\n{"id": "b"}\n')
    assert broken.data is None
    assert broken.raw == '{"id": "a"\n'
    assert broken.problem == "broken JSON: EOF while parsing an object at line 2 column 0"
    assert good.data == {"id": "b"}


def test_bytes_that_are_no_utf8_spoil_their_line_only(tmp_path: Path) -> None:
    """Latin-1 in one line is that line's trouble: é is 0xe9 there, at offset 7."""
    broken, good = records(tmp_path, b'{"id":"\xe9"}\n{"id": "b"}\n')
    assert (broken.data, broken.problem) == (None, "not UTF-8: byte 0xe9 at offset 7")
    assert broken.raw == '{"id":"\ufffd"}\n'
    assert good.data == {"id": "b"}


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    """Files that editors on Windows wrote begin with one."""
    assert records(tmp_path, b'\xef\xbb\xbf{"id": "a"}\n')[0].data == {"id": "a"}


def test_carriage_returns_are_tolerated(tmp_path: Path) -> None:
    """CRLF ends a line as LF does."""
    assert [record.data for record in records(tmp_path, b'{"id": "a"}\r\n\r\n{"id": "b"}\r\n')] == [
        {"id": "a"},
        {"id": "b"},
    ]


def test_json_that_is_no_object_is_a_problem(tmp_path: Path) -> None:
    """A list on a line is no scenario."""
    assert records(tmp_path, b"[1]\n")[0].problem == "not an object: list"


@pytest.mark.parametrize("line", [b'{"id": NaN}', b'{"id": "\\ud800"}', b"[" * 500])
def test_json_that_cannot_be_stored_is_a_problem(tmp_path: Path, line: bytes) -> None:
    """NaN, half a surrogate pair and bottomless nesting have no place in a table."""
    problem = records(tmp_path, line)[0].problem
    assert problem is not None
    assert problem.startswith("broken JSON: ")


def test_a_line_without_end_is_refused_and_the_next_one_read(tmp_path: Path) -> None:
    """A line longer than memory should hold is passed over, not read into it."""
    long, good = records(tmp_path, b"x" * (2 * LONGEST_LINE + 10) + b'\n{"id": "b"}\n')
    assert (long.line, long.problem) == (1, "over-long line")
    assert len(long.raw) < 5000
    assert (good.line, good.data) == (2, {"id": "b"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The message says which file and which setting."""
    with pytest.raises(DataError, match=r"no source file at .*absent\.jsonl; correct .* scenarios\.sources"):
        list(read_jsonl(tmp_path / "absent.jsonl"))


def test_a_folder_is_no_source_file(tmp_path: Path) -> None:
    """A path that cannot be opened as a file is a data error too."""
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        list(read_jsonl(tmp_path))


def test_a_gzipped_file_is_read_through(tmp_path: Path) -> None:
    """By its name."""
    path = tmp_path / "source.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a"}\n\n{"id": "b"}\n'))
    assert [(record.line, record.data) for record in read_jsonl(path)] == [(1, {"id": "a"}), (3, {"id": "b"})]


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"x" + content])
def test_a_damaged_gzip_file_is_an_error(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Cut short, or not compressed at all."""
    path = tmp_path / "source.jsonl.gz"
    path.write_bytes(damage(gzip.compress(b'{"id": "a"}\n')))
    with pytest.raises(DataError, match=r"source\.jsonl\.gz is damaged"):
        list(read_jsonl(path))
