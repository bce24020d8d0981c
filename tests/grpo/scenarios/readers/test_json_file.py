"""JSON documents with a list of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.scenarios.readers.json_file import read_json
from grpo.scenarios.readers.source_files import LARGEST_DOCUMENT


@pytest.mark.parametrize("content", ['[{"id": "a"}, 7]', '{"scenarios": [{"id": "a"}, 7]}', '\ufeff[{"id": "a"}, 7]'])
def test_records_stand_in_a_list_or_under_scenarios(tmp_path: Path, content: str) -> None:
    """Both forms give the same records, with or without byte order mark; what is no object is a problem."""
    path = tmp_path / "source.json"
    path.write_text(content, encoding="utf-8")
    first, second = read_json(path)
    assert (first.line, first.data) == (1, {"id": "a"})
    assert (second.line, second.data, second.problem) == (2, None, "not an object: int")


def test_a_broken_document_is_an_error_that_says_where(tmp_path: Path) -> None:
    """Nothing of a broken document can be trusted."""
    path = tmp_path / "source.json"
    path.write_text('[{"id": "a"},\n {"id": ]')
    with pytest.raises(DataError, match=r"source\.json is no JSON document: .* line 2 column"):
        list(read_json(path))


def test_a_document_without_a_list_is_an_error(tmp_path: Path) -> None:
    """An object with other keys holds no records."""
    path = tmp_path / "source.json"
    path.write_text('{"items": []}')
    with pytest.raises(DataError, match='expected a list, or an object with a list under "scenarios"'):
        list(read_json(path))


def test_a_document_that_memory_should_not_hold_is_refused(tmp_path: Path) -> None:
    """The message names the limit and the format without one."""
    path = tmp_path / "source.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_DOCUMENT + 1)
    with pytest.raises(DataError, match=r"more than 64 MiB.* kind jsonl"):
        list(read_json(path))
