"""JSON lines and JSON documents: records, and records that cannot be read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.data_errors import LONGEST_LINE
from grpo.errors import DataError
from grpo.scenarios.readers.exports.record_file import read_objects
from grpo.scenarios.readers.files.json_file import read_json, read_jsonl
from grpo.scenarios.readers.files.source_files import LARGEST_DOCUMENT
from grpo.scenarios.records import SourceRecord


def records(tmp_path: Path, content: bytes) -> list[SourceRecord]:
    """Records of a file with these bytes."""
    path = tmp_path / "source.jsonl"
    path.write_bytes(content)
    return list(read_jsonl(path))


def test_a_line_is_a_record_at_its_place(tmp_path: Path) -> None:
    """Each record knows its file and its line, counted from 1."""
    first, second = records(tmp_path, b'{"id": "a"}\n{"id": "b"}\n')
    assert (first.line, first.data, second.line, second.data) == (1, {"id": "a"}, 2, {"id": "b"})
    assert first.source == str(tmp_path / "source.jsonl")


def test_blank_lines_are_skipped_but_count_as_lines(tmp_path: Path) -> None:
    """Blank lines between records are skipped, and places stay those of an editor."""
    assert [record.line for record in records(tmp_path, b'\n{"id": "a"}\n  \n\n{"id": "b"}')] == [2, 5]


def test_a_broken_line_is_a_record_with_a_problem(tmp_path: Path) -> None:
    """Half a JSON object does not stop the lines after it."""
    broken, good = records(tmp_path, b'{"id": "a"\n{"id": "b"}\n')
    assert broken.data is None
    assert broken.raw == '{"id": "a"\n'
    assert broken.problem == "broken JSON: EOF while parsing an object at line 2 column 0"
    assert good.data == {"id": "b"}


def test_bytes_that_are_not_utf8_quarantine_their_line_only(tmp_path: Path) -> None:
    """Latin-1 in one line is a problem of that line: é is 0xe9 there, at offset 7."""
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


def test_json_other_than_an_object_is_a_problem(tmp_path: Path) -> None:
    """A list on a line is not a scenario."""
    assert records(tmp_path, b"[1]\n")[0].problem == "not an object: list"


@pytest.mark.parametrize("line", [b'{"id": NaN}', b'{"id": "\\ud800"}', b"[" * 500])
def test_json_that_cannot_be_stored_is_a_problem(tmp_path: Path, line: bytes) -> None:
    """A table cannot hold NaN, half a surrogate pair or very deep nesting."""
    problem = records(tmp_path, line)[0].problem
    assert problem is not None
    assert problem.startswith("broken JSON: ")


def test_an_over_long_line_is_a_problem_and_the_next_line_is_read(tmp_path: Path) -> None:
    """The rest of the line is skipped in pieces, so that memory stays bounded."""
    long, good = records(tmp_path, b"x" * (2 * LONGEST_LINE + 10) + b'\n{"id": "b"}\n')
    assert (long.line, long.problem) == (1, "over-long line")
    assert len(long.raw) < 5000
    assert (good.line, good.data) == (2, {"id": "b"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The message names the file and the setting."""
    with pytest.raises(DataError, match=r"no source file at .*absent\.jsonl\. Correct .* scenarios\.sources"):
        list(read_jsonl(tmp_path / "absent.jsonl"))


def test_a_folder_in_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    """A path that cannot be opened as a file is a data error too."""
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        list(read_jsonl(tmp_path))


def test_a_gzipped_file_is_read_through(tmp_path: Path) -> None:
    """The name of the file decides."""
    path = tmp_path / "source.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a"}\n\n{"id": "b"}\n'))
    assert [(record.line, record.data) for record in read_jsonl(path)] == [(1, {"id": "a"}), (3, {"id": "b"})]


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: content[:5]])
def test_a_damaged_gzip_file_is_an_error(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Cut short, in its text or in its header."""
    path = tmp_path / "source.jsonl.gz"
    path.write_bytes(damage(gzip.compress(b'{"id": "a"}\n')))
    with pytest.raises(DataError, match=r"source\.jsonl\.gz is damaged"):
        list(read_jsonl(path))


@pytest.mark.parametrize("content", ['[{"id": "a"}, 7]', '{"scenarios": [{"id": "a"}, 7]}', '\ufeff[{"id": "a"}, 7]'])
def test_records_stand_in_a_list_or_under_scenarios(tmp_path: Path, content: str) -> None:
    """Both forms give the same records, with or without byte order mark; an item that is not an object is a problem."""
    path = tmp_path / "source.json"
    path.write_text(content, encoding="utf-8")
    first, second = read_json(path)
    assert (first.line, first.data) == (1, {"id": "a"})
    assert (second.line, second.data, second.problem) == (2, None, "not an object: int")


def test_a_broken_document_is_an_error_with_its_place(tmp_path: Path) -> None:
    """The error has the line and column."""
    path = tmp_path / "source.json"
    path.write_text('[{"id": "a"},\n {"id": ]')
    with pytest.raises(DataError, match=r"source\.json is not a JSON document: .* line 2 column"):
        list(read_json(path))
    path.write_text("[20/11/2026, 09:00:01] Ann: Where is order 7?\n")
    with pytest.raises(DataError, match=r"source\.json is not a JSON document: "):
        list(read_json(path))


def test_a_document_without_a_list_is_an_error(tmp_path: Path) -> None:
    """An object with other keys holds no records."""
    path = tmp_path / "source.json"
    path.write_text('{"items": []}')
    with pytest.raises(DataError, match='Expected a list, or an object with a list under "scenarios"'):
        list(read_json(path))


def test_a_document_over_the_size_limit_is_an_error(tmp_path: Path) -> None:
    """The message names the limit and the format without one."""
    path = tmp_path / "source.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_DOCUMENT + 1)
    with pytest.raises(DataError, match=r"more than 64 MiB.* kind jsonl"):
        list(read_json(path))


def test_the_list_of_records_may_be_named(tmp_path: Path) -> None:
    """`records` leads through objects, also by keys with dots. Without a list there the error says what is there."""
    path = tmp_path / "source.json"
    path.write_text('{"results": {"rows": [{"id": "a"}], "count": 1}, "a.json": {"log": [{"id": "b"}]}}')
    assert [record.data for record in read_json(path, "results.rows")] == [{"id": "a"}]
    assert [record.data for record in read_json(path, "a.json.log")] == [{"id": "b"}]
    with pytest.raises(DataError, match=r"has nothing at records: results\.lines\. It has results, a\.json"):
        list(read_json(path, "results.lines"))
    with pytest.raises(DataError, match=r"records: results\.count is not a list, but a int"):
        list(read_json(path, "results.count"))


def test_a_table_of_columns_and_rows_is_read(tmp_path: Path) -> None:
    """As W&B and pandas (`orient="split"`) write it. A row of another length has a problem."""
    path = tmp_path / "source.json"
    path.write_text('{"columns": ["id", "n"], "data": [["a", 1], ["b"]]}')
    good, short = read_json(path)
    assert (good.data, short.data, short.problem) == ({"id": "a", "n": 1}, None, "not an object: list")


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.json", b'{"a": 1}\n\n{"b": 2}\n', [1, 3]),
        ("a.log", b'broken\n{"b": 2}\n{"b": 3}\n', [1, 2, 3]),
        ("a", b'{"a": 1}\n{"b": 2}\n', [1, 2]),
        ("a", b'{"a":\n 1}', [1]),
        ("a", b'[{"a": 1}, {"b": 2}]', [1, 2]),
    ],
)
def test_lines_and_documents_are_told_apart(tmp_path: Path, name: str, content: bytes, lines: list[int]) -> None:
    """A blank line or a broken one does not make a document of lines."""
    path = tmp_path / name
    path.write_bytes(content)
    assert [record.line for record in read_objects(path)] == lines


def test_a_table_with_a_column_named_twice_is_refused(tmp_path: Path) -> None:
    """Otherwise the first would be lost."""
    path = tmp_path / "a.json"
    path.write_text('{"columns": ["a", "a"], "data": [[1, 2]]}')
    with pytest.raises(DataError, match="names the column a twice"):
        list(read_json(path))


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_a_record_of_very_many_keys_or_lists_is_a_problem(tmp_path: Path, suffix: str) -> None:
    """Its neighbours are read, also those with as many numbers, and with brackets in a text."""
    path = tmp_path / f"chats.{suffix}"
    keys = json.dumps({f"k{number}": 1 for number in range(10_001)})
    lists = f'{{"id": [{"[]," * 2**20}1]}}'
    numbers = f'{{"id": "c", "results": [{"7," * 2**20}1], "text": "{"[{" * 2**20}"}}'
    items = ['{"id": "a"}', keys, *([lists] if suffix == "jsonl" else []), numbers, '{"id": "b"}']
    path.write_text("\n".join(items) if suffix == "jsonl" else f"[{','.join(items)}]")
    problems = [record.problem for record in (read_jsonl if suffix == "jsonl" else read_json)(path)]
    too_many = ["too many lists and objects: more than 1048576"] if suffix == "jsonl" else []
    assert problems == [None, "too many keys: more than 10000", *too_many, None, None]


def test_a_document_of_very_many_objects_is_refused(tmp_path: Path) -> None:
    """12 MB of empty objects take hundreds of megabytes once they are records."""
    path = tmp_path / "chats.json"
    path.write_text(f"[{'{},' * 2**22}1]")
    with pytest.raises(DataError, match=r"chats\.json has more than 4194304 lists and objects"):
        list(read_json(path))


@pytest.mark.parametrize("content", ["{%s}", "[{%s}]", '{"id": "a", "world": {%s}}'])
def test_a_document_of_very_many_keys_in_few_objects_is_refused_before_it_is_parsed(
    tmp_path: Path, content: str
) -> None:
    """It ends in the middle, which a parser would have noticed. Colons in a text are not keys."""
    path = tmp_path / "chats.json"
    path.write_text((content % ",".join(f'"k{number}": 1' for number in range(20_001)))[:-1])
    with pytest.raises(DataError, match=r"chats\.json has an object with more than 10000 keys"):
        list(read_json(path))
    path.write_text(json.dumps([{"id": "a", "text": ":" * 50_000}]))
    assert [record.problem for record in read_json(path)] == [None]
