"""MultiDoGO: what customers said in crowd-sourced service conversations.

One row a customer's turn; turn numbers have gaps where the agent spoke:

    conversationId  turnNumber  utterance        intent
    9b7b…           0           hai              openinggreeting          → user_responses ("hai", "my mouse …")
    9b7b…           4           my mouse broke   reportbrokensoftware     → category reportbrokensoftware

https://github.com/awslabs/multi-domain-goal-oriented-dialogues-dataset, CDLA-Permissive-1.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from grpo.scenarios.readers.csv_file import Row, read_rows
from grpo.scenarios.readers.record import Record
from grpo.scenarios.scenario import Domain

_COLUMNS = ("conversationId", "turnNumber", "utterance", "intent")
_DOMAINS: dict[str, Domain] = {
    "software": "technical_support",
    "fastfood": "sales",
    "finance": "customer_service",
}
_COURTESIES = {
    "openinggreeting",
    "closinggreeting",
    "contentonly",
    "confirmation",
    "rejection",
    "outofdomain",
    "thankyou",
}
"""Intents that do not tell what a conversation is about."""


def read_multidogo(folder: Path, *, domains: Sequence[str], parts: Sequence[str]) -> Iterator[Record]:
    """Read `turn/<domain>/<part>.tsv`, one record a conversation, at the line of its first turn.

    The rows of a conversation stand together. Should one come back later, it is a record of its own with the
    same id. Raises `DataError` where a file is missing or lacks a column.
    """
    for domain in domains:
        for part in parts:
            path = folder / "turn" / domain / f"{part}.tsv"
            rows = read_rows(path, delimiter="\t", required=_COLUMNS)
            for conversation, turns in groupby(rows, key=lambda row: row.cells.get("conversationId", "")):
                yield _record(str(path), domain, conversation, list(turns))


def _record(source: str, domain: str, conversation: str, rows: list[Row]) -> Record:
    line, raw = rows[0].line, "".join(row.raw for row in rows)
    try:
        turns = _order(rows)
    except ValueError as error:
        return Record(source=source, line=line, data=None, raw=raw, problem=str(error))
    data = {
        "id": f"multidogo-{domain}-{conversation}",
        "topic": domain,
        "domain": _DOMAINS[domain],
        "user_responses": [row.cells["utterance"] for row in turns],
        "metadata": {
            "category": _category(turns),
            "source": "multidogo",
            "licence": "CDLA-Permissive-1.0",
        },
    }
    return Record(source=source, line=line, data=data, raw=raw)


def _order(rows: list[Row]) -> list[Row]:
    """Rows by turn number; `ValueError` if one is broken or two have the same number."""
    numbered: dict[float, Row] = {}
    for row in rows:
        if row.problem is not None:
            raise ValueError(f"{row.problem} (line {row.line})")
        try:
            number = float(row.cells["turnNumber"])  # finance counts 0.0, 1.0, …
        except ValueError as error:
            raise ValueError(f"no turn number: {row.cells['turnNumber']!r} (line {row.line})") from error
        if number in numbered:
            raise ValueError(f"turn number twice: {row.cells['turnNumber']} (line {row.line})")
        numbered[number] = row
    return [numbered[number] for number in sorted(numbered)]


def _category(turns: list[Row]) -> str:
    """The first intent that tells what the customer wants; several intents of a turn are joined by `<div>`."""
    intents = (intent for row in turns for intent in row.cells["intent"].split("<div>"))
    return next((intent for intent in intents if intent and intent not in _COURTESIES), "general")
