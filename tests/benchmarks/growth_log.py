"""A year of a serving log: support conversations with late turns and feedback, as merging leaves it.

Each day has the segments of an hour and server in one table a kind. Texts are of templates with items, names and
numbers, so that many are alike and some are near-duplicates, as those of a support desk are.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grpo.log.lines import encode
from grpo.log.log_tables import FEEDBACK, MERGED, SEGMENTS_KEY, TURNS
from grpo.log.merging import ROWS, SCHEMAS
from grpo.log.records import Feedback, Record, ServedTurn
from grpo.log.tables import MERGED_VERSION, SEGMENT, VERSION_KEY, record_row
from grpo.messages import Message
from grpo.trajectories import Turn
from tests.grpo.log.fixtures import feedback, turn

PODS = 10
_ITEMS = ("kettle", "teapot", "lamp", "desk", "chair", "sofa", "shelf", "mirror", "carpet", "toaster", "clock", "vase")
_NAMES = ["Anna", "Karl", "Jo", "Egon", "Mia", "Paul", "Lea", "Tom", "Ida", "Max", "Eva", "Ben"]
_OPENINGS = (
    "Hello, where is the parcel with my {colour} {item}? It is order {number}.",
    "My {item} of order {number} broke after {days} days, please replace it.",
    "I was charged twice for the {colour} {item}, what now? My name is {name}.",
    "Can I pay the invoice {number} of the {item} {days} days later?",
    "Please cancel order {number}, I do not need the {colour} {item} any more.",
    "The {item} that you sent is {colour} and I ordered another colour. Order {number}.",
    "How do I return the {item}? I bought it {days} days ago, mail {name}.{number}@example.org.",
    "Is the {colour} {item} in stock again? I asked {days} days ago about it, {name} said so.",
)
_LATER = ("Yes, please do that.", "It is order {number}.", "And what about the {item}?", "Thank you, {name}!")
_COLOURS = ["blue", "red", "green", "black", "white", "grey", "brown", "yellow"]


class SupportLog:
    """A log that is written day by day; `records` counts the bytes that its records have as lines of segments."""

    def __init__(self, folder: Path, *, turns_a_day: int, seed: int = 0) -> None:
        self._folder, self._turns_a_day = folder, turns_a_day
        self._random, self._number = random.Random(seed), 0
        self._waiting: dict[date, list[Record]] = defaultdict(list)
        self.records = 0

    def write_day(self, day: date) -> int:
        """Write the tables of a day; returns the number of its turns."""
        records, turns = self._waiting.pop(day, []), 0
        while turns < self._turns_a_day:
            for record in self._conversation(day):
                turns += isinstance(record, ServedTurn)
                at = record.time.date()
                (records if at == day else self._waiting[at]).append(record)
        self.records += sum(len(encode(record)) for record in records)
        for kind, of_kind in ((TURNS, ServedTurn), (FEEDBACK, Feedback)):
            self._write(kind, day, [record for record in records if isinstance(record, of_kind)])
        return turns

    def _write(self, kind: str, day: date, records: Iterable[Record]) -> None:
        names = [f"{day:%Y%m%d}T{hour:02}0000000000-{pod:012x}" for hour in range(24) for pod in range(PODS)]
        digests = {name: hashlib.sha256(f"{name}{self._number}".encode()).hexdigest() for name in names}
        metadata = {VERSION_KEY: MERGED_VERSION.encode(), SEGMENTS_KEY: json.dumps(digests).encode()}
        schema = SCHEMAS[kind].append(pa.field(SEGMENT, pa.string())).with_metadata(metadata)
        rows = [{**record_row(record), "end": 0, SEGMENT: self._random.choice(names)} for record in records]
        path = self._folder / kind / day.isoformat() / f"{MERGED}{day:%Y%m%d}-{self._number:012x}.parquet"
        path.parent.mkdir(parents=True)
        table = pa.Table.from_pylist(sorted(rows, key=lambda row: row[SEGMENT]), schema)
        pq.write_table(table, path, compression="zstd", write_page_checksum=True, row_group_size=ROWS)

    def _conversation(self, day: date) -> list[Record]:
        """One to five turns, one in a hundred of which comes weeks later, and feedback on one in five."""
        rng = self._random
        self._number += 1
        name = f"{self._number:08x}{rng.getrandbits(64):016x}"
        at = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=rng.randrange(86_400))
        records: list[Record] = []
        consent = rng.choice(("training", "training", ""))
        for number in range(rng.choice((1, 2, 3, 3, 4, 5))):
            at += timedelta(days=rng.randint(1, 30)) if rng.random() < 0.01 else timedelta(seconds=rng.randint(20, 200))
            template = rng.choice(_OPENINGS if number == 0 else _LATER)
            text = template.format(
                item=rng.choice(_ITEMS),
                colour=rng.choice(_COLOURS),
                name=rng.choice(_NAMES),
                number=rng.randint(10_000, 99_999),
                days=rng.randint(2, 30),
            )
            parent = records[-1].id if records else None
            records.append(self._turn(f"{name}-{number}", parent, text, number, conversation_id=name, time=at))
        records = [replace(record, consent=consent, key=f"key-{rng.randrange(3)}") for record in records]
        if rng.random() < 0.2:
            later = timedelta(days=rng.choice((0, 0, 0, 0, 1, 2, 7)), minutes=5)
            given = feedback(f"f{name}", conversation_id=name, time=at + later, rating=float(rng.random() < 0.7))
            records.append(replace(given, key=records[0].key, success=rng.random() < 0.6))
        return records

    def _turn(self, name: str, parent: str | None, text: str, number: int, **changes: object) -> ServedTurn:
        tokens, start = 40, 40 * number
        reply = f"I have looked it up. {text[:60]} is taken care of, you get a message within a day."
        messages = (Message(role="user", content=text), Message(role="assistant", content=reply))
        return replace(
            turn("a"),
            id=name,
            request_id=f"r{name}",
            parent=parent,
            turns=tuple(
                Turn(message=message, start=start + 20 * k, stop=start + 20 * (k + 1))
                for k, message in enumerate(messages)
            ),
            token_ids=np.asarray([self._random.randrange(8000) for _ in range(tokens)], np.int32),
            loss_mask=np.repeat([False, True], 20),
            sampler_logprobs=np.asarray([0.0] * 20 + [-self._random.random() for _ in range(20)], np.float32),
            **changes,
        )
