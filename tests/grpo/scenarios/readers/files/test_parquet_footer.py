"""Footers of Parquet files."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.data_errors import try_call
from grpo.errors import DataError
from grpo.parquet_footer import read_footer
from grpo.parquet_rows import ParquetRows


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_a_footer_has_the_values_that_arrow_reads(tmp_path: Path, compression: str, *, use_dictionary: bool) -> None:
    """Rows and row groups, and the path, values, bytes and encodings of each chunk."""
    path = tmp_path / "t.parquet"
    table = pa.table({"id": ["a", "b", "c"], "turns": [["x", "y"], [], ["z"]], "n": [1.5, None, 2.5]})
    pq.write_table(table, path, row_group_size=2, compression=compression, use_dictionary=use_dictionary)
    footer, arrow = read_footer(path), pq.read_metadata(path)
    assert (footer.rows, len(footer.groups)) == (arrow.num_rows, arrow.num_row_groups) == (3, 2)
    for index, group in enumerate(footer.groups):
        theirs = [arrow.row_group(index).column(k) for k in range(arrow.num_columns)]
        assert group.rows == arrow.row_group(index).num_rows
        assert [(chunk.path, chunk.values, chunk.uncompressed, chunk.dictionary) for chunk in group.chunks] == [
            (chunk.path_in_schema, chunk.num_values, chunk.total_uncompressed_size, chunk.has_dictionary_page)
            for chunk in theirs
        ]


def test_no_byte_of_a_footer_ends_the_process(tmp_path: Path) -> None:
    """Each byte of a footer is changed three times, seed 0; Arrow aborts the process on some of these."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "turns": [["x", "y"], ["z"]]}), path)
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    draw = random.Random(0)
    for position in [place for place in range(begin, len(content)) for _ in range(3)]:
        path.write_bytes(content[:position] + bytes([draw.randrange(256)]) + content[position + 1 :])
        rows = try_call(lambda: list(ParquetRows(path).read(["id", "turns"])))
        assert isinstance(rows, DataError) or len(rows) == 2


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"\x16" + b"\x80" * 4096, "more than 64 bits"),
        (b"\x1c" * 4096, "RecursionError"),
        (b"\x19\xfc\xff\xff\xff\xff\x0f", "IndexError"),
    ],
    ids=["endless integer", "depth", "two thousand million structs"],
)
def test_a_malicious_footer_is_an_error(tmp_path: Path, tail: bytes, message: str) -> None:
    """Reading one takes time in proportion to its bytes."""
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1" + tail + len(tail).to_bytes(4, "little") + b"PAR1")
    error = try_call(lambda: read_footer(path))
    assert message in f"{type(error).__name__} {error}"
