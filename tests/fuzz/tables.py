"""Sources in Arrow's formats: Parquet files, conversation logs, saved datasets."""

from __future__ import annotations

import io
import json
import random
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grpo.log.conversation import LoggedConversation
from grpo.messages import Message, ToolCall
from grpo.retraining.curation import LIVE, LIVE_SCHEMA
from grpo.scenarios.conversation_log import SCHEMA, ConversationLog
from tests.fuzz.mutate import LITERALS, json_value, mutate_json
from tests.fuzz.samples import plain

ROWS = 6


def parquet(draw: random.Random, *, changed: bool) -> bytes:
    """A table of scenarios, nested fields as JSON or as Arrow's; `changed`: one cell of the first row is another."""
    rows = [plain(k) for k in range(ROWS)]
    nested = draw.random() < 0.5
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name in ("tools", "world", "expected", *(() if nested else ("user_responses", "metadata"))):
        columns[name] = [json.dumps(cell) for cell in columns[name]]
    if changed:
        name = draw.choice(list(columns))
        columns[name][0] = _cell(columns[name][0], draw)
    content = io.BytesIO()
    pq.write_table(
        pa.table({name: _array(cells) for name, cells in columns.items()}),
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


def conversations(folder: Path) -> list[Path]:
    """A log of two days."""
    spoken = (
        Message(role="user", content="My parcel is lost."),
        Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "17"}),)),
        Message(role="tool", content='{"state": "lost"}'),
        Message(role="assistant", content="It is lost."),
    )
    return list(
        ConversationLog(folder).write(
            LoggedConversation(
                id=f"{day}-{number}",
                time=datetime(2026, 11, day, 9, number, tzinfo=UTC),
                model="desk/1",
                messages=spoken,
                reward=0.5,
                world={"orders": {"17": {"state": "lost"}}},
                consent="training",
            )
            for day in (20, 21)
            for number in range(ROWS)
        )
    )


def no_live_conversations(folder: Path) -> Path:
    """Table of curation without a conversation of a serving log."""
    path = folder / LIVE
    pq.write_table(LIVE_SCHEMA.empty_table(), path)
    return path


def change_row(path: Path, draw: random.Random) -> None:
    """Another cell in the first row of a file of the log."""
    table = pq.read_table(path)
    name = draw.choice(SCHEMA.names)
    cells = table.column(name).to_pylist()
    if pa.types.is_string(SCHEMA.field(name).type):
        cells[0] = _cell(cells[0], draw)
        array = _array(cells)
        array = array if pa.types.is_string(array.type) else array.cast(pa.string())
    elif name == "messages":
        cells[0] = [
            {"role": "user", "content": None, "tool_calls": draw.choice(("7", "[[1]]", "[" * 3000, '{"a": 1}'))}
        ]
        array = pa.array(cells, SCHEMA.field(name).type)
    elif name == "time":
        stamps = table.column(name).cast(pa.int64()).to_pylist()
        stamps[0] = draw.choice((None, 2**62, -(2**62), 0))
        array = pa.array(stamps, pa.int64()).cast(SCHEMA.field(name).type)
    else:
        cells[0] = draw.choice((float("nan"), float("inf"), -5.0, None))
        array = pa.array(cells, pa.float64())
    changed = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), array)
    pq.write_table(changed, path, compression=draw.choice(("none", "zstd")), use_dictionary=draw.random() < 0.5)


def save_dataset(folder: Path) -> list[Path]:
    """A folder of `save_to_disk`, and the files in it."""
    import datasets

    datasets.disable_progress_bars()
    rows = [{"id": f"s{k}", "user_responses": [f"Hi {k}."], "world": json.dumps({"n": k})} for k in range(ROWS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets.Dataset.from_list(rows).save_to_disk(str(folder))
    return sorted(path for path in folder.iterdir() if path.is_file())
