"""Sources in Arrow's formats: Parquet and Arrow files, saved datasets."""

from __future__ import annotations

import io
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.mutate import LITERALS, json_value, mutate_json
from tests.fuzz.samples import plain

ROWS = 6


def table(kind: str, draw: random.Random, *, changed: bool) -> bytes:
    """A Parquet or Arrow file of scenarios, nested fields as JSON or as Arrow's; `changed`: one cell of the first row
    is another."""
    rows = [plain(k) for k in range(ROWS)]
    nested = draw.random() < 0.5
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name in ("tools", "world", "expected", *(() if nested else ("user_responses", "metadata"))):
        columns[name] = [json.dumps(cell) for cell in columns[name]]
    if changed:
        name = draw.choice(list(columns))
        columns[name][0] = _cell(columns[name][0], draw)
    rows_of = pa.table({name: _array(cells) for name, cells in columns.items()})
    content = io.BytesIO()
    if kind == "arrow":
        write = draw.choice((pa.ipc.new_file, pa.ipc.new_stream))
        options = pa.ipc.IpcWriteOptions(compression=draw.choice((None, "lz4", "zstd")))
        with write(content, rows_of.schema, options=options) as writer:
            writer.write_table(rows_of, max_chunksize=draw.choice((2, ROWS)))
        return content.getvalue()
    pq.write_table(
        rows_of,
        content,
        compression=draw.choice(("none", "snappy", "zstd")),
        use_dictionary=draw.random() < 0.5,
        row_group_size=draw.choice((2, ROWS)),
        data_page_version=draw.choice(("1.0", "2.0")),
        write_statistics=draw.random() < 0.5,
        store_schema=draw.random() < 0.5,
    )
    return content.getvalue()


def _cell(cell: Any, draw: random.Random) -> Any:
    if not isinstance(cell, str):
        return None
    if draw.random() < 0.3:
        return LITERALS[draw.choice(list(LITERALS))]
    try:
        text = json.dumps(mutate_json(json.loads(cell), draw))
    except ValueError:
        text = json.dumps(json_value(draw))
    for name, literal in LITERALS.items():
        text = text.replace(f'"{name}"', literal)
    return text


def _array(cells: list[Any]) -> pa.Array:
    return pa.array([cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell for cell in cells])


def save_dataset(folder: Path) -> list[Path]:
    """A folder of `save_to_disk`, and the files in it."""
    import datasets

    datasets.disable_progress_bars()
    rows = [{"id": f"s{k}", "user_responses": [f"Hi {k}."], "world": json.dumps({"n": k})} for k in range(ROWS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets.Dataset.from_list(rows).save_to_disk(str(folder))
    return sorted(path for path in folder.iterdir() if path.is_file())
