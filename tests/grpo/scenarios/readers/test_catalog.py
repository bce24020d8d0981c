"""From settings to records."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.scenarios import FileSource, GeneratorSource
from grpo.errors import DataError
from grpo.scenarios.readers.catalog import read_records


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [("jsonl", "s.jsonl", "\n\n"), ("json", "s.json", "[]"), ("csv", "s.csv", "id,user_0\n")],
)
def test_a_source_without_records_is_an_error(tmp_path: Path, kind: str, name: str, content: str) -> None:
    """A file that is there but says nothing is a mistake, in every format."""
    path = tmp_path / name
    path.write_text(content)
    source = FileSource.model_validate({"kind": kind, "path": str(path)})
    with pytest.raises(DataError, match=rf"{name} \({kind}\) is empty; fill it or take it out of scenarios\.sources"):
        list(read_records(source))


def test_an_empty_generator_is_named_by_its_function() -> None:
    """A generator has no path to name."""
    with pytest.raises(DataError, match=r"source builtins:list \(generator\) is empty"):
        list(read_records(GeneratorSource(kind="generator", function="builtins:list")))
