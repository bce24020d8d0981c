"""Folders that the datasets library saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.scenarios.readers.huggingface import read_huggingface

datasets = pytest.importorskip("datasets")


def test_a_saved_dataset_is_read(tmp_path: Path) -> None:
    """Rows are records; a column that is null in a row is a missing field."""
    rows = [
        {"id": "a", "user_responses": ["Hi."], "topic": None},
        {"id": "b", "user_responses": ["Bye."], "topic": "t"},
    ]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "set")
    assert [record.data for record in read_huggingface(tmp_path / "set", "train")] == [
        {"id": "a", "user_responses": ["Hi."]},
        {"id": "b", "user_responses": ["Bye."], "topic": "t"},
    ]


def test_a_split_is_chosen_by_name(tmp_path: Path) -> None:
    """Of several splits the named one is read, and a name that is not there is an error that lists them."""
    parts = {name: datasets.Dataset.from_list([{"id": name}]) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set")
    assert [record.data for record in read_huggingface(tmp_path / "set", "test")] == [{"id": "test"}]
    with pytest.raises(DataError, match="no split 'dev', only train, test"):
        list(read_huggingface(tmp_path / "set", "dev"))


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_folder_without_a_dataset_is_an_error(tmp_path: Path, name: str) -> None:
    """A missing folder and one that holds something else are both named."""
    with pytest.raises(DataError, match="holds no saved dataset"):
        list(read_huggingface(tmp_path / name, "train"))
