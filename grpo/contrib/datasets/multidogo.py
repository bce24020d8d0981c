"""MultiDoGO: the customers' turns of crowd-sourced service conversations.

Each row is one turn of the customer. Turn numbers have gaps, because the agent's turns are not in the data:

    conversationId  turnNumber  utterance        intent
    9b7b…           0           hai              openinggreeting          → user_responses ("hai", "my mouse …")
    9b7b…           4           my mouse broke   reportbrokensoftware     → category reportbrokensoftware

In the files annotated at sentence level, each row is a sentence with a number within its turn. The sentences of a turn
are joined by a space. Each level has its own partition into parts, so a conversation may be in `dev` at one level and
in `train` at the other.

https://github.com/awslabs/multi-domain-goal-oriented-dialogues-dataset, CDLA-Permissive-1.0
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from grpo.config.csv_format import CsvFormat
from grpo.config.scenarios import MultiDoGOLevel
from grpo.contrib.datasets.parts import DatasetPart, find_parts
from grpo.scenario import Domain
from grpo.scenarios.readers.files.csv_file import CsvRow, read_rows
from grpo.scenarios.records import SourceRecord

_COLUMNS = ("conversationId", "turnNumber", "utterance", "intent")
_SENTENCE = "sentenceNumber"
_TABS = CsvFormat(delimiter="\t")
_DOMAINS: dict[str, Domain] = {
    "software": "technical_support",
    "fastfood": "sales",
    "finance": "customer_service",
    "airline": "customer_service",
    "insurance": "customer_service",
    "media": "customer_service",
}
_PARTS = ("train", "dev", "test")
_COURTESIES = {
    "openinggreeting",
    "closinggreeting",
    "contentonly",
    "confirmation",
    "rejection",
    "outofdomain",
    "thankyou",
}
"""Intents that do not name the subject of a conversation."""


def find_multidogo(
    folder: Path, level: MultiDoGOLevel, domains: Sequence[str], parts: Sequence[str]
) -> list[DatasetPart]:
    """Find the files of these domains and parts: `<level>/<domain>/<part>.tsv`, or the publisher's paths.

    Raises `DataError` that names all missing files.
    """
    published = f"splits_annotated_at_{level}_level"
    places = (level, published, f"paper_splits/{published}", f"data/paper_splits/{published}")
    names = {
        f"{domain}/{part}": tuple(f"{place}/{domain}/{part}.tsv" for place in places)
        for domain in _DOMAINS
        for part in _PARTS
    }
    return find_parts(folder, [f"{domain}/{part}" for domain in domains for part in parts], names)


def read_multidogo(
    folder: Path, *, domains: Sequence[str], parts: Sequence[str], level: MultiDoGOLevel = "turn"
) -> Iterator[SourceRecord]:
    """Read the files of these domains and parts, one record per conversation, at the line of its first turn.

    The rows of a conversation are consecutive. If more rows of it follow further down, they are another record with the
    same id. Raises `DataError` if a file is missing or lacks a column.
    """
    required = _COLUMNS if level == "turn" else (*_COLUMNS, _SENTENCE)
    for part in find_multidogo(folder, level, domains, parts):
        domain = part.name.partition("/")[0]
        rows = read_rows(part.path, _TABS, required=required)
        for conversation, turns in groupby(rows, key=lambda row: row.cells.get("conversationId", "")):
            yield _record(str(part.path), domain, conversation, list(turns))


def _record(source: str, domain: str, conversation: str, rows: list[CsvRow]) -> SourceRecord:
    line, raw = rows[0].line, "".join(row.raw for row in rows)
    try:
        turns = _order(rows)
    except ValueError as error:
        return SourceRecord(source=source, line=line, data=None, raw=raw, problem=str(error))
    data = {
        "id": f"multidogo-{domain}-{conversation}",
        "topic": domain,
        "domain": _DOMAINS[domain],
        "user_responses": [" ".join(s for row in turn if (s := row.cells["utterance"]).strip()) for turn in turns],
        "metadata": {
            "category": _category([row for turn in turns for row in turn]),
            "source": "multidogo",
            "licence": "CDLA-Permissive-1.0",
        },
    }
    return SourceRecord(source=source, line=line, data=data, raw=raw)


def _order(rows: list[CsvRow]) -> list[list[CsvRow]]:
    """Turns by number, each with its sentences by number. A row without a sentence number is a whole turn.

    Raises `ValueError` if a row is broken, a number is not finite, or two rows have the same number.
    """
    turns: dict[float, dict[float, CsvRow]] = {}
    for row in rows:
        if row.problem is not None:
            raise ValueError(f"{row.problem} (line {row.line})")
        sentences = turns.setdefault(_number(row, "turnNumber", "turn"), {})
        sentence = _number(row, _SENTENCE, "sentence") if _SENTENCE in row.cells else 0.0
        if sentence in sentences:
            column, what = (_SENTENCE, "sentence") if _SENTENCE in row.cells else ("turnNumber", "turn")
            raise ValueError(f"{what} number twice: {row.cells[column]} (line {row.line})")
        sentences[sentence] = row
    return [[turns[turn][sentence] for sentence in sorted(turns[turn])] for turn in sorted(turns)]


def _number(row: CsvRow, column: str, what: str) -> float:
    """Number in a cell, a decimal in the finance files: 0.0, 1.0, …"""
    try:
        number = float(row.cells[column])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"no {what} number: {row.cells[column]!r} (line {row.line})")
    return number


def _category(turns: list[CsvRow]) -> str:
    """First intent other than a courtesy. In the data, several intents of a turn are joined by `<div>`."""
    intents = (intent for row in turns for intent in row.cells["intent"].split("<div>"))
    return next((intent for intent in intents if intent and intent not in _COURTESIES), "general")
