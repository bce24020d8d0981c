"""Bounds on tables: a value that repeats takes no space in a file, and a file may hold it a billion times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.config.scenarios import HuggingFaceSource
from grpo.errors import DataError
from grpo.parquet_rows import RowBudget
from grpo.scenarios.readers.files.arrow_file import ArrowFile
from grpo.scenarios.readers.files.parquet import read_parquet
from grpo.scenarios.readers.huggingface import read_huggingface


def _write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _read_arrow(path: Path) -> int:
    return sum(1 for _ in ArrowFile(path).read())


FORMATS: dict[str, tuple[Callable[[pa.Table, Path], None], Callable[[Path], int]]] = {
    "parquet": (
        lambda table, path: pq.write_table(table, path, compression="zstd"),
        lambda path: sum(1 for _ in read_parquet(path)),
    ),
    "arrow": (_write_arrow, _read_arrow),
}


def _dictionary(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([text]))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_of_far_more_rows_than_bytes_is_refused(tmp_path: Path, kind: str) -> None:
    """Over 2 million empty rows. Rows of data have ids of their own, which take bytes."""
    write, read = FORMATS[kind]
    column = pa.nulls(2_000_001, pa.string() if kind == "parquet" else pa.null())
    write(pa.table({"id": column}), tmp_path / "rows")
    with pytest.raises(DataError, match="rows has over 2000000 rows and over four for each byte"):
        read(tmp_path / "rows")


def test_a_million_labels_and_a_long_prompt_in_each_row_are_within_the_bounds(tmp_path: Path) -> None:
    """386 kB of labels in a million rows, and 551 kB of chats in 100,000 rows with a prompt of 31 kB each."""
    for size, rows, row_bytes in ((386_000, 1_000_000, 30), (551_000, 100_000, 31_000)):
        (tmp_path / "rows").write_bytes(bytes(size))
        budget = RowBudget(tmp_path / "rows")
        budget.take_rows(rows)
        budget.take_bytes(rows * row_bytes)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("nested", [False, True], ids=["text", "list"])
def test_a_text_that_each_row_repeats_is_refused_before_a_row_is_made(tmp_path: Path, kind: str, nested: bool) -> None:
    """4 MiB in each of 50,000 rows are 200 GB. 20 kB in each of 5,000 rows are read."""
    write, read = FORMATS[kind]
    ids = [f"{number:x}" for number in range(50_000)]

    def table(text: str, count: int) -> pa.Table:
        texts = _dictionary(text, count)
        if nested:
            texts = pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), texts)
        return pa.table({"id": ids[:count], "goal": texts})

    write(table("x" * 2**22, len(ids)), tmp_path / "rows")
    with pytest.raises(DataError, match="rows holds rows of over 4 GiB and over 1000 times its own size"):
        read(tmp_path / "rows")
    assert _rows_before_refusal(tmp_path / "rows", kind) == 0
    write(table("x" * 20_000, 5000), tmp_path / "rows")
    assert read(tmp_path / "rows") == 5000


def test_rows_that_share_a_prefix_are_refused_before_a_row_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DELTA_BYTE_ARRAY stores what differs from the row before: 1 MiB in each of 300 rows are 300 MiB."""
    monkeypatch.setattr("grpo.parquet_rows.BYTES_ALWAYS_READ", 2**28)
    texts = [f"{'x' * 2**20}{number}" for number in range(300)]
    pq.write_table(
        pa.table({"id": [str(number) for number in range(300)], "goal": texts}),
        tmp_path / "rows",
        compression="zstd",
        use_dictionary=False,
        column_encoding={"id": "PLAIN", "goal": "DELTA_BYTE_ARRAY"},
    )
    assert _rows_before_refusal(tmp_path / "rows", "parquet") == 0


def test_a_damaged_batch_of_a_mapped_file_is_refused_if_it_would_be_validated_row_by_row(tmp_path: Path) -> None:
    """An index outside the dictionary. Each of 5,000 rows would validate its 4 MiB once more, which takes 5 s."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array(["x" * 2**22]))
    _write_arrow(pa.table({"id": [str(number) for number in range(5000)], "goal": texts}), tmp_path / "rows")
    content = bytearray((tmp_path / "rows").read_bytes())
    place = content.rindex(bytes(4 * 5000))
    content[place + 400 : place + 404] = (9).to_bytes(4, "little")
    (tmp_path / "rows").write_bytes(content)
    assert _rows_before_refusal(tmp_path / "rows", "arrow") == 0


def _rows_before_refusal(path: Path, kind: str) -> int:
    records = read_parquet(path) if kind == "parquet" else ArrowFile(path).read()
    rows = list[object]()
    with pytest.raises(DataError, match=r"rows of over \d GiB"):
        rows.extend(records)
    return len(rows)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_of_very_many_columns_is_refused(tmp_path: Path, kind: str) -> None:
    """Each reader looks at all columns several times."""
    write, read = FORMATS[kind]
    write(pa.table({"id": ["a"], **{f"c{number}": ["x"] for number in range(10_000)}}), tmp_path / "rows")
    with pytest.raises(DataError, match="rows has 10001 columns, and at most 10000 are read"):
        read(tmp_path / "rows")


def test_a_saved_dataset_of_far_more_rows_than_bytes_is_refused(tmp_path: Path) -> None:
    """The same bounds hold for a folder: over 2 million rows of nothing."""
    import datasets

    datasets.Dataset(pa.table({"id": pa.nulls(2_000_001)})).save_to_disk(str(tmp_path / "rows"))
    with pytest.raises(DataError, match="rows has over 2000000 rows and over four for each byte"):
        list(read_huggingface(HuggingFaceSource(kind="huggingface", path=str(tmp_path / "rows")), tmp_path / "rows"))
