"""Datasets that the `datasets` library saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.scenarios import HuggingFaceSource
from grpo.errors import DataError
from grpo.scenarios.readers.huggingface import read_huggingface
from grpo.scenarios.records import SourceRecord

datasets = pytest.importorskip("datasets")


def read(path: Path, split: str) -> list[SourceRecord]:
    """Records of a split of a saved data set."""
    return list(read_huggingface(HuggingFaceSource(kind="huggingface", path=str(path), split=split), path))


def test_a_saved_dataset_is_read(tmp_path: Path) -> None:
    """Rows are records; a column that is null in a row is a missing field."""
    rows = [
        {"id": "a", "user_responses": ["Hi."], "topic": None},
        {"id": "b", "user_responses": ["Bye."], "topic": "t"},
    ]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "set")
    assert [record.data for record in read(tmp_path / "set", "train")] == [
        {"id": "a", "user_responses": ["Hi."]},
        {"id": "b", "user_responses": ["Bye."], "topic": "t"},
    ]


def test_a_split_is_chosen_by_name(tmp_path: Path) -> None:
    """Of several splits the named one is read, and a name that is not there is an error that lists them."""
    parts = {name: datasets.Dataset.from_list([{"id": name}]) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set")
    assert [record.data for record in read(tmp_path / "set", "test")] == [{"id": "test"}]
    with pytest.raises(DataError, match="no split 'dev', only train, test"):
        list(read(tmp_path / "set", "dev"))


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_folder_without_a_dataset_is_an_error(tmp_path: Path, name: str) -> None:
    """A missing folder and a folder of other files are both named."""
    with pytest.raises(DataError, match="holds no saved dataset"):
        list(read(tmp_path / name, "train"))


def saved(folder: Path, *texts: str) -> Path:
    """Save a dataset of these texts; returns its file."""
    datasets.Dataset.from_list([{"id": str(k), "goal": text} for k, text in enumerate(texts)]).save_to_disk(folder)
    (path,) = folder.glob("*.arrow")
    return path


def test_text_that_is_not_utf8_quarantines_its_row_only(tmp_path: Path) -> None:
    """One byte of the second row is changed on disk."""
    path = saved(tmp_path / "set", "first", "second", "third")
    path.write_bytes(path.read_bytes().replace(b"second", b"\xffecond"))
    first, second, third = read(tmp_path / "set", "train")
    assert (first.data, third.data) == ({"id": "0", "goal": "first"}, {"id": "2", "goal": "third"})
    assert second.problem is not None
    assert second.problem.startswith("row cannot be decoded: ArrowInvalid: Column 1: In chunk 0: Invalid: Invalid UTF8")


def test_an_offset_outside_the_texts_quarantines_its_row_and_reads_no_foreign_memory(tmp_path: Path) -> None:
    """The texts end at 5, 11 and 16: the second end becomes 2,147,483,647, a place that is not mapped."""
    path = saved(tmp_path / "set", "first", "second", "third")
    ends = b"".join(number.to_bytes(4, "little") for number in (0, 5, 11, 16))
    content = path.read_bytes()
    assert content.count(ends) == 1
    path.write_bytes(content.replace(ends, ends[:8] + b"\xff\xff\xff\x7f" + ends[12:]))
    records = list(read(tmp_path / "set", "train"))
    assert [record.data is None for record in records] == [False, True, True]


def test_a_dataset_whose_description_is_damaged_is_an_error(tmp_path: Path) -> None:
    """The message names the folder and the remedy."""
    saved(tmp_path / "set", "first")
    (tmp_path / "set" / "state.json").write_text('{"_data_files": 7}')
    with pytest.raises(DataError, match=r"set holds no saved dataset: .*\. Write it with"):
        list(read(tmp_path / "set", "train"))
