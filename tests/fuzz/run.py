"""Mutated sources through ingestion, and what must hold of each.

records = used + quarantined, in the counts and in both tables; every scenario is read back
a mutated record costs itself alone: the number of records is the same, and every other one is used as before
a mutated file or companion is read, or refused with a `GRPOError`
of a serving log no file is refused: what is damaged is quarantined, the other files are used whole
"""

from __future__ import annotations

import csv
import io
import itertools
import random
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import yaml
from pydantic_core import from_json

from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import (
    FileSource,
    HuggingFaceSource,
    PythonSource,
    ScenarioSettings,
    ServedSource,
    Source,
)
from grpo.data_errors import try_call
from grpo.errors import GRPOError
from grpo.scenarios.guess import as_yaml, guess_source
from grpo.scenarios.ingest import ingest
from grpo.scenarios.readers.served import join_served
from grpo.scenarios.reward_data import read_labels, read_pairs
from grpo.scenarios.served_tuning import collect_corrections
from grpo.scenarios.table import read_scenarios
from tests.fuzz import served, tables
from tests.fuzz.mutate import flip_byte, json_value, mutate_bytes, mutate_cells, mutate_json, python_object
from tests.fuzz.samples import Cells, Content, Document, Lines, Sample, plain, samples

PATIENCE_S = 60
FEWEST = 3
"""Sources that are mutated however many records the first of them hold."""
OBJECTS: list[Any] = []
"""Next values of the function below."""


class Hang(BaseException):
    """A source took too long."""


class Wrong(AssertionError):
    """A count or a neighbour is not what it should be."""


@dataclass(kw_only=True)
class Tally:
    """Results of the mutated sources of one kind."""

    name: str
    sources: int = 0
    records: int = 0
    refused: int = 0
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Read:
    """Result of reading a source: ids in use, and the number of records."""

    used: frozenset[str]
    records: int


Case = Callable[[], int]
"""One mutated source; returns how many records it had. Raises `Wrong`, a `GRPOError` where it is refused."""


def objects() -> Iterator[Any]:
    """The function that is fuzzed."""
    yield from OBJECTS


def targets() -> list[str]:
    """Names of everything that is fuzzed."""
    return [*(sample.name for sample in samples()), "parquet", "arrow", "huggingface", "served", "python", "guess"]


def fuzz(name: str, *, records: int, seed: int) -> Tally:
    """Mutate at least three sources of this kind, and go on until that many records were read."""
    tally = Tally(name=name)
    draw = random.Random(f"{seed} {name}")
    with tempfile.TemporaryDirectory() as folder:
        for case in _cases(name, Path(folder), draw):
            place = f"{name}, seed {seed}, source {tally.sources}"
            tally.sources += 1
            try:
                with _alarm():
                    outcome = try_call(case)
            except Hang:
                outcome = 0
                tally.hangs.append(place)
            if isinstance(outcome, int):
                tally.records += outcome
            elif isinstance(outcome, GRPOError):
                tally.refused += 1
            elif isinstance(outcome, Wrong):
                tally.wrong.append(f"{place}: {outcome}")
            else:
                frame = traceback.extract_tb(outcome.__traceback__)[-1]
                tally.crashes.append(f"{place}: {type(outcome).__name__} at {frame.filename}:{frame.lineno}")
            if tally.sources >= FEWEST and max(tally.records, tally.sources) >= records:
                return tally
    raise AssertionError("cases do not end")


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _cases(name: str, folder: Path, draw: random.Random) -> Iterator[Case]:
    if name in ("parquet", "arrow"):
        return _table_cases(name, folder, draw)
    if name == "guess":
        return _guess_cases(folder, draw)
    if name == "huggingface":
        return _huggingface_cases(folder, draw)
    if name == "served":
        return _served_cases(folder, draw)
    if name == "python":
        return _python_cases(folder, draw)
    (sample,) = (sample for sample in samples() if sample.name == name)
    return _sample_cases(sample, folder, draw)


def _sample_cases(sample: Sample, folder: Path, draw: random.Random) -> Iterator[Case]:
    place = folder / "source"
    for path, content in sample.files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content.encode())
    clean = _read(sample, place, folder)
    holding = [path for path, content in sample.files.items() if content.items and path not in sample.companions]
    for _ in itertools.count():
        action = draw.random()
        if action < 0.6 or (not sample.companions and action < 0.7):
            path = draw.choice(holding)
            mutated = _mutate_record(sample.files[path], draw)
            yield partial(_one_record, sample, place, folder, clean, path, mutated)
        else:
            path = draw.choice(list(sample.files) if action < 0.85 else list(sample.companions or sample.files))
            whole = _mutate_file(sample.files[path], draw, parsed=path in sample.companions)
            yield partial(_whole_file, sample, place, folder, path, whole)


def _mutate_record(content: Content, draw: random.Random) -> Content:
    index = draw.randrange(len(content.items))
    if isinstance(content, Cells):
        return content.replace(index, mutate_cells(content.items[index], draw))
    assert isinstance(content, (Lines, Document))
    whole = draw.random() < 0.1
    return content.replace(index, json_value(draw) if whole else mutate_json(content.items[index], draw))


def _mutate_file(content: Content, draw: random.Random, *, parsed: bool) -> bytes:
    if parsed and isinstance(content, Document) and draw.random() < 0.5:
        return Document(value=mutate_json(content.value, draw)).encode()
    if parsed and isinstance(content, Lines) and content.items and draw.random() < 0.5:
        return _mutate_record(content, draw).encode()
    return mutate_bytes(content.encode(), draw)


def _one_record(sample: Sample, place: Path, folder: Path, clean: Read, path: str, mutated: Content) -> int:
    """A mutated record costs itself alone, unless the document that holds it is not JSON any more."""
    raw = mutated.encode()
    with _instead(place / path, raw):
        if isinstance(mutated, Document) and not _is_json(raw):
            return _read(sample, place, folder).records
        read = _expected(lambda: _read(sample, place, folder))
    if sample.fan == 1 and read.records != clean.records:
        raise Wrong(f"{read.records} records of {clean.records} after one of {path} was changed")
    lost = len(clean.used) - len(read.used)  # ids may be lines, which a cell of two lines moves
    if lost > sample.fan:
        raise Wrong(f"{lost} records lost after one of {path} was changed")
    return read.records


def _whole_file(sample: Sample, place: Path, folder: Path, path: str, raw: bytes) -> int:
    with _instead(place / path, raw):
        read = _read(sample, place, folder)
    if path in sample.companions or len(sample.files) - len(sample.companions) != 1:
        return read.records
    expected = _count(sample.files[path], raw)
    if sample.fan == 1 and expected is not None and expected != read.records:
        raise Wrong(f"{read.records} records, counted otherwise {expected}")
    return read.records


def _count(content: Content, raw: bytes) -> int | None:
    """Records of a mutated file, counted without the readers; None where that is not clear."""
    if isinstance(content, Lines):
        return sum(1 for line in raw.split(b"\n") if line.strip())
    if isinstance(content, Cells):
        before = csv.field_size_limit(2**31 - 1)
        try:
            text = raw.decode("utf-8-sig", errors="surrogateescape")
            rows = csv.reader(io.StringIO(text, newline=""), delimiter=content.delimiter, strict=True)
            return sum(1 for row in rows if row) - 1
        except csv.Error:
            return None
        finally:
            csv.field_size_limit(before)
    return None


@contextmanager
def _instead(path: Path, content: bytes) -> Iterator[None]:
    """A file with other content for a while."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def _expected(read: Callable[[], Read]) -> Read:
    """Records that must all be read."""
    try:
        return read()
    except GRPOError as error:
        raise Wrong(f"refused for one record: {type(error).__name__}") from error


def _is_json(raw: bytes) -> bool:
    try:
        from_json(raw, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def _read(sample: Sample, place: Path, folder: Path) -> Read:
    if sample.source is not None:
        return _ingest(sample.source(place), folder)
    readout: Any = (read_pairs if sample.judged == "pairs" else read_labels)(sample.kind, place)  # type: ignore[operator]
    if readout.records != len(readout.items) + len(readout.quarantined):
        raise Wrong("records are not used + quarantined")
    return Read(used=frozenset(item.id for item in readout.items), records=readout.records)


def _ingest(source: Source, folder: Path) -> Read:
    """Ingest beside one good record, so that there is always something to use."""
    anchor = folder / "anchor.jsonl"
    anchor.write_text('{"id": "anchor", "goal": "x"}\n')
    table, quarantine = folder / "scenarios.parquet", folder / "quarantine.parquet"
    sources = (FileSource(kind="jsonl", path=str(anchor)), source)
    counts = ingest(sources, table, quarantine, max_quarantined_fraction=1.0)
    held, refused = list(read_scenarios(table)), pq.read_table(quarantine).to_pylist()
    if (counts.scenarios, counts.quarantined) != (len(held), len(refused)):
        raise Wrong(f"{counts.scenarios} + {counts.quarantined} counted, {len(held)} + {len(refused)} in the tables")
    if counts.records != counts.scenarios + counts.quarantined or sum(counts.reasons.values()) != counts.quarantined:
        raise Wrong("records are not used + quarantined")
    if any(not row["reason"] for row in refused):
        raise Wrong("a record is quarantined without a reason")
    return Read(used=frozenset(scenario.id for scenario in held) - {"anchor"}, records=counts.records - 1)


def _table_cases(kind: Literal["parquet", "arrow"], folder: Path, draw: random.Random) -> Iterator[Case]:
    path = folder / f"source.{kind}"
    source = FileSource(kind=kind, path=str(path))

    def case(content: bytes, *, flipped: bool) -> int:
        path.write_bytes(content)
        read = _ingest(source, folder) if flipped else _expected(lambda: _ingest(source, folder))
        if read.records != tables.ROWS:
            raise Wrong(f"{read.records} records of {tables.ROWS} rows")
        if not flipped and len(read.used) < tables.ROWS - 1:
            raise Wrong(f"{len(read.used)} of {tables.ROWS} rows used after one was changed")
        return read.records

    for _ in itertools.count():
        if draw.random() < 0.3:
            yield partial(case, tables.table(kind, draw, changed=True), flipped=False)
        else:
            yield partial(case, flip_byte(tables.table(kind, draw, changed=False), draw), flipped=True)


def _guess_cases(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Files of all kinds without a config. What is guessed must read the file as it is, by the YAML that is shown."""
    single = [sample for sample in samples() if sample.source is not None and len(sample.files) == 1]

    def case(path: Path, content: bytes) -> int:
        path.write_bytes(content)
        shown = yaml.safe_load(as_yaml(guess_source(path)))
        return _ingest(ScenarioSettings.model_validate(shown["scenarios"]).sources[0], folder).records

    for _ in itertools.count():
        ((name, content),) = draw.choice(single).files.items()
        mutated = (
            _mutate_record(content, draw).encode() if draw.random() < 0.7 else _mutate_file(content, draw, parsed=True)
        )
        yield partial(case, folder / Path(name).name, mutated)


def _huggingface_cases(folder: Path, draw: random.Random) -> Iterator[Case]:
    paths = tables.save_dataset(folder / "saved")
    source = HuggingFaceSource(kind="huggingface", path=str(folder / "saved"))

    def case(path: Path, content: bytes) -> int:
        with _instead(path, content):
            return _ingest(source, folder).records

    for _ in itertools.count():
        path = draw.choice(paths)
        mutate = draw.choice((flip_byte, flip_byte, mutate_bytes))
        yield partial(case, path, mutate(path.read_bytes(), draw))


def _served_cases(folder: Path, draw: random.Random) -> Iterator[Case]:
    settings = CurationSettings(licences=("own",))
    logs = {
        folder / name: served.write_log(folder / name, compacted=name == "tables") for name in ("segments", "tables")
    }

    def case(log: Path, path: Path, content: bytes) -> int:
        source = ServedSource(kind="served", path=str(log))
        with _instead(path, content):
            read = _expected(lambda: _ingest(source, folder))
            collected = collect_corrections([join_served(source)], settings)
        spared = sum(name.startswith("conversation-b") for name in read.used)
        corrected = sum(item.pair.id.startswith("correction-b") for item in collected.used)
        if (spared, corrected) != (served.CONVERSATIONS, served.CONVERSATIONS):
            raise Wrong(f"{spared} conversations and {corrected} corrections of the other file are used")
        return read.records

    for _ in itertools.count():
        log, paths = draw.choice(list(logs.items()))
        path = draw.choice(paths)
        yield partial(case, log, path, served.mutate_file(path, draw))


def _python_cases(folder: Path, draw: random.Random) -> Iterator[Case]:
    source = PythonSource(kind="python", object=f"{__name__}:objects")

    def case(items: list[Any]) -> int:
        OBJECTS[:] = items
        read = _expected(lambda: _ingest(source, folder))
        if read.records != len(items) or "s99" not in read.used:
            raise Wrong(f"{read.records} records of {len(items)} objects")
        return read.records

    for _ in itertools.count():
        yield partial(case, [*(python_object(plain(k), draw) for k in range(4)), plain(99)])
