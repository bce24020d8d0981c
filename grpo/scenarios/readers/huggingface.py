"""A dataset that the `datasets` library saved in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpo.errors import DataError
from grpo.scenarios.readers.columns import to_fields
from grpo.scenarios.readers.record import Record


def read_huggingface(path: Path, split: str) -> Iterator[Record]:
    """Read a folder of `save_to_disk`, without network; `split` is used where the folder holds several.

    Raises `DataError` where the folder is missing or no such dataset, or the split is not in it.
    """
    import datasets

    try:
        dataset = datasets.load_from_disk(str(path))
    except (FileNotFoundError, ValueError) as error:
        raise DataError(
            f"{path} holds no saved dataset: {error}; write it with Dataset.save_to_disk and give that folder"
        ) from error
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            raise DataError(f"{path} has no split {split!r}, only {', '.join(dataset)}; correct the source's split")
        dataset = dataset[split]
    for number, row in enumerate(dataset, start=1):
        try:
            yield Record(source=str(path), line=number, data=to_fields(row))
        except ValueError as error:
            yield Record(source=str(path), line=number, data=None, raw=str(row), problem=str(error))
