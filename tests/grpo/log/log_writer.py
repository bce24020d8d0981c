"""Process that writes turns of several conversations to a serving log, until it is killed or has written enough.

    python log_writer.py FOLDER LEDGER CONVERSATIONS COUNT

It goes on with the conversations that it reads in the log. After each acknowledgement a line with the turn's id is
written to the ledger.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from grpo.log.folder import ServedLog
from grpo.log.records import ServedTurn
from grpo.log.writer import ServingLog
from tests.grpo.log.fixtures import turn


def last_turns(folder: Path) -> dict[str, int]:
    """Number of the last turn of each conversation in the log."""
    last: dict[str, int] = {}
    for record in ServedLog(folder).read():
        if isinstance(record, ServedTurn):
            conversation, _, number = record.id.rpartition("-")
            last[conversation] = max(last.get(conversation, 0), int(number))
    return last


async def converse(log: ServingLog, ledger: int, conversation: str, number: int, count: int) -> None:
    """Write `count` turns, each after the acknowledgement of the one before."""
    for later in range(number + 1, number + 1 + count):
        parent = f"{conversation}-{later - 1}" if later > 1 else None
        record = replace(
            turn("a"),
            id=f"{conversation}-{later}",
            request_id=f"request-{conversation}-{later}",
            conversation_id=conversation,
            parent=parent,
            time=datetime.now(UTC),
        )
        await log.append(record)
        os.write(ledger, f"{record.id}\n".encode())


async def main(folder: Path, ledger: Path, conversations: int, count: int) -> None:
    """Write to all conversations at once, in small segments that are compacted meanwhile."""
    last = last_turns(folder)
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with ServingLog(folder, segment_bytes=40_000) as log:
        os.write(descriptor, b"begun\n")
        names = [f"{ledger.name}-{k}" for k in range(conversations)]
        await asyncio.gather(*(converse(log, descriptor, name, last.get(name, 0), count) for name in names))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
