"""Mutated serving logs: segments of lines with checksums, and the Parquet tables that they are compacted into.

Two segments or their tables, of which one is mutated. The conversations of the other one are all used, whatever the
damage; a line or row that is not a record is counted and quarantined, and no log is refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from dataclasses import replace
from pathlib import Path

from grpo.log.compaction import compact
from grpo.log.folder import ServedLog
from grpo.log.writer import ServingLog
from tests.fuzz.mutate import flip_byte, json_value, mutate_bytes, mutate_json
from tests.grpo.log.fixtures import feedback, turn

CONVERSATIONS = 3
"""Conversations of each segment: a turn, and feedback on it."""


def write_log(folder: Path, *, compacted: bool) -> list[Path]:
    """Write a log of the conversations b, then of a, each in files of its own; returns the files of a."""
    log = ServedLog(folder)
    before: set[str] = set()
    for name in "ba":
        before = {path.stem for path in _files(log)}
        asyncio.run(_write_segment(folder, name))
        if compacted:
            compact(folder)
    return [path for path in _files(log) if path.stem not in before]


def _files(log: ServedLog) -> list[Path]:
    return [*(table.path for table in log.tables()), *log.segments().values()]


async def _write_segment(folder: Path, name: str) -> None:
    async with ServingLog(folder) as log:
        for number in range(CONVERSATIONS):
            own = f"{name}{number}"
            await log.append(replace(turn(name), id=own, request_id=own, conversation_id=own))
            await log.append(feedback(f"on {own}", conversation_id=own, rating=0.5, success=True, correction="No."))


def mutate_line(content: bytes, draw: random.Random) -> bytes:
    """Segment with a record of another JSON, whose checksum is right."""
    lines = content.split(b"\n")
    index = draw.randrange(len(lines) - 1)
    record = json.loads(lines[index][9:])
    mutated = json_value(draw) if draw.random() < 0.1 else mutate_json(record, draw)
    text = json.dumps(mutated).encode()
    lines[index] = b"%08x %s" % (zlib.crc32(text), text)
    return b"\n".join(lines)


def mutate_file(path: Path, draw: random.Random) -> bytes:
    """Content of a file of the log with bytes changed, or a record of a segment with another value."""
    if path.suffix == ".log" and draw.random() < 0.5:
        return mutate_line(path.read_bytes(), draw)
    return draw.choice((flip_byte, flip_byte, mutate_bytes))(path.read_bytes(), draw)
