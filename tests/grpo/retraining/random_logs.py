"""Serving logs that grow at random: forks, choices, late feedback, midnight, damage, compaction, merging, erasures."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from grpo.data_errors import try_call
from grpo.log.compaction import compact, erase_records
from grpo.log.folder import ERASURES, SEGMENTS, ServedLog
from grpo.log.lines import encode
from grpo.log.log_tables import find_tables
from grpo.log.merging import merge_days, remove_merged
from grpo.log.records import Feedback, Record, ServedTurn
from grpo.messages import Message
from tests.grpo.log.fixtures import NOON, feedback, turn

TEXTS = (
    "Where is the parcel with my blue teapot?",
    "My kettle broke after two days, please replace it.",
    "I was charged twice for the same lamp, what now?",
    "Can I pay the invoice of the garden chair later?",
)


class RandomLog:
    """A log to which `step` does one thing more."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self._random = folder, random.Random(seed)
        for name in (SEGMENTS, ERASURES):
            (folder / name).mkdir(parents=True)
        self.now = NOON
        self._turns: list[ServedTurn] = []
        self._number = 0
        self._late: list[Record] = []

    def step(self) -> str:
        """Do one thing; returns its name."""
        draw = self._random.random()
        if draw < 0.5 or not self._turns:
            self._write_segment()
            return "segment"
        if draw < 0.65:
            compact(self.folder)
            return "compact"
        if draw < 0.8:
            compact(self.folder)
            merge_days(self.folder, today=self.now.date() + timedelta(days=self._random.randint(0, 3)))
            if self._random.random() < 0.5:
                remove_merged(self.folder)
            return "merge"
        if draw < 0.9:
            return self._erase()
        return self._damage()

    def _write_segment(self) -> None:
        """A segment of some hours later, with new turns and feedback in any order, and some of before once more."""
        self.now += timedelta(hours=self._random.choice((1, 5, 11, 26)))
        records = [record for _ in range(self._random.randint(1, 8)) for record in self._records()]
        records += self._random.sample(self._late, min(len(self._late), self._random.randint(0, 2)))
        self._random.shuffle(records)
        held = [record for record in records if self._random.random() < 0.15]  # they come days later
        self._late += held
        written = [record for record in records if record not in held]
        name = f"{self.now:%Y%m%dT%H%M%S%f}-{uuid.UUID(int=self._random.getrandbits(128)).hex[:12]}"
        content = b"".join(map(encode, written))
        (self.folder / SEGMENTS / f"{name}.log").write_bytes(content)

    def _records(self) -> list[Record]:
        rng, name = self._random, self._name()
        earlier = rng.choice(self._turns) if self._turns and rng.random() < 0.55 else None
        if earlier is not None and rng.random() < 0.4:
            return [self._feedback(earlier)]
        changes = {"start": 4} if earlier is not None else {}
        made = turn(name, earlier.id if earlier is not None else None, **changes)
        made = replace(
            made,
            conversation_id=earlier.conversation_id if earlier is not None else f"c{name}",
            time=self._time(),
            user=rng.choice(("", "ann", "bob")) if earlier is None else earlier.user,
            key=rng.choice(("key-a", "key-b")) if earlier is None else earlier.key,
            consent=rng.choice(("training", "training", "")) if earlier is None else earlier.consent,
            status=rng.choice(("answered",) * 6 + ("aborted", "failed")),
            metadata=rng.choice(({}, {"category": "refund"}, {"category": "x" * 300})),
        )
        if made.conversation_id == f"c{name}" and rng.random() < 0.1 and self._turns:
            other = rng.choice(self._turns)  # its parent is of another conversation, or it has the id of another turn
            made = replace(made, parent=other.id) if rng.random() < 0.5 else replace(made, id=other.id)
        text = " ".join(
            (rng.choice(TEXTS), *rng.choices(("Anna", "4711", "please", "!", "today"), k=rng.randint(0, 2)))
        )
        question = replace(made.turns[0], message=Message(role="user", content=text))
        made = replace(made, turns=(question, *made.turns[1:]))
        self._turns.append(made)
        if rng.random() < 0.15:  # a second choice of the same request
            return [made, replace(made, id=f"{made.id}b", choice=1)]
        return [made]

    def _feedback(self, of: ServedTurn) -> Feedback:
        rng = self._random
        return replace(
            feedback(f"f{self._name() if rng.random() < 0.8 else rng.randint(0, 5)}"),
            conversation_id=of.conversation_id if rng.random() < 0.9 else "unknown",
            turn_id=rng.choice((None, of.id, rng.choice(self._turns).id, "unknown")),
            time=self._time(),
            key=rng.choice((of.key, of.key, "key-a")),
            rating=rng.choice((None, 0.0, 1.0)),
            success=rng.choice((None, True, False)),
            world=rng.choice((None, {"orders": {"4711": {"name": "Anna"}}})),
        )

    def _time(self) -> datetime:
        return self.now - timedelta(minutes=self._random.randint(0, 600), microseconds=self._random.randint(0, 3))

    def _name(self) -> str:
        self._number += 1
        return f"n{self._number:04d}"

    def _erase(self) -> str:
        """Erase a user or a conversation; a damaged table is deleted before, as the refusal says."""
        for table in find_tables(self.folder):
            if isinstance(try_call(partial(pq.read_table, table.path)), Exception):
                table.path.unlink()
        if self._random.random() < 0.2:
            erase_records(self.folder, user=self._random.choice(("ann", "bob")))
        else:
            erase_records(self.folder, conversation_id=self._random.choice(self._turns).conversation_id)
        return "erase"

    def _damage(self) -> str:
        """Break a line of a segment, or a table of one segment."""
        segments = [path for path in ServedLog(self.folder).segments().values() if path.stat().st_size]
        if segments and self._random.random() < 0.7:
            path = self._random.choice(segments)
            lines = path.read_bytes().splitlines(keepends=True)
            place = self._random.randrange(len(lines))
            lines[place] = b"damage" + lines[place][6:]
            path.write_bytes(b"".join(lines))
            return "damaged line"
        tables = [table.path for table in ServedLog(self.folder).tables() if not table.is_merged]
        if tables:
            path = self._random.choice(tables)
            path.write_bytes(path.read_bytes()[:-20])
            return "damaged table"
        return "nothing"
