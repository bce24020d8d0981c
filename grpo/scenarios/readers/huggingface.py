"""Datasets that the `datasets` library saved to a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from grpo.config.scenarios import HuggingFaceSource, Source
from grpo.data_errors import error_text, try_call
from grpo.errors import DataError
from grpo.parquet_rows import BATCH_ROWS, check_rows
from grpo.scenarios.readers.files.arrow_file import validated_rows
from grpo.scenarios.readers.files.row_fields import Fields, row_record
from grpo.scenarios.readers.mapped_columns import check_present
from grpo.scenarios.readers.table_rows import interpret, is_plain, wanted_columns
from grpo.scenarios.records import SourceRecord

_SPLITS = "dataset_dict.json"
"""File of a folder that holds several splits, with their names."""


def read_huggingface(source: HuggingFaceSource, path: Path) -> Iterator[SourceRecord]:
    """Read a folder of `save_to_disk`, without network. If the folder holds several splits, `split` is read.

    Raises `DataError` if the folder is missing, damaged or not a saved dataset, or if the split or a column is missing.
    """
    import datasets

    split = source.split
    dataset = try_call(lambda: datasets.load_from_disk(str(path)))
    if isinstance(dataset, Exception):
        raise DataError(
            f"{path} holds no saved dataset: {error_text(dataset)}. Write it with Dataset.save_to_disk and give that "
            "folder"
        ) from dataset
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            raise DataError(f"{path} has no split {split!r}, only {', '.join(dataset)}. Correct the source's split")
        dataset = dataset[split]
    if is_plain(source):
        yield from _records(path, dataset, fields=None)
    else:
        check_present(path, wanted_columns(source), dataset.column_names)
        yield from interpret(source, path, _records(path, dataset, fields=dict))


def other_splits(source: Source) -> list[str]:
    """Splits of a saved dataset that the source does not read."""
    if not isinstance(source, HuggingFaceSource) or not (index := Path(source.path) / _SPLITS).is_file():
        return []
    return [name for name in json.loads(index.read_text(encoding="utf-8"))["splits"] if name != source.split]


def _records(path: Path, dataset: Any, fields: Fields | None) -> Iterator[SourceRecord]:
    claimed, number = len(dataset), 0
    batches = partial(dataset.with_format("arrow").iter, batch_size=BATCH_ROWS)
    check_rows(path, batches, is_mapped=True)
    for table in batches():
        for row in validated_rows(table, number):
            yield row_record(path, row, fields)
        number += table.num_rows
    if number != claimed:
        raise DataError(f"{path} is damaged: it claims {claimed} rows and holds {number}. Save the dataset again")
