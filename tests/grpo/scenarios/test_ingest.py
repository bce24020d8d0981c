"""Ingestion: every record becomes a scenario or is quarantined with a reason."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from grpo import progress
from grpo.config.scenarios import FileSource, PublishedSource, PythonSource, Source
from grpo.errors import BudgetError, DataError
from grpo.scenarios.ingest import IngestCounts, SeenIds, ingest
from grpo.scenarios.table import read_scenarios

GOOD = {"id": "good", "user_responses": ["Hi."]}


def write(path: Path, *records: dict[str, Any] | str) -> FileSource:
    """A JSON-lines source with these records."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines), encoding="utf-8")
    return FileSource(kind="jsonl", path=str(path))


def run(tmp_path: Path, *sources: Source, share: float = 1.0) -> tuple[IngestCounts, list[Any]]:
    """Ingest into tables of this folder; returns the counts and the rows of the quarantine."""
    quarantine = tmp_path / "quarantine.parquet"
    counts = ingest(sources, tmp_path / "scenarios.parquet", quarantine, max_quarantined_fraction=share)
    return counts, pq.read_table(quarantine).to_pylist()


def scenarios(tmp_path: Path) -> list[Any]:
    """Scenarios of the table."""
    return list(read_scenarios(tmp_path / "scenarios.parquet"))


def strange() -> Iterator[dict[str, Any]]:
    """Records with values that JSON cannot hold, and a valid one."""
    yield {"id": "object", "goal": "x", "world": {"thing": object()}}
    yield {"id": "surrogate", "goal": "x", "world": {"text": "\ud800"}}
    yield {"id": "half \ud800", "goal": "x"}
    yield {**GOOD, "id": "object"}


class Mute:
    """An object whose `repr` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def hostile() -> Iterator[Any]:
    """Objects that JSON cannot hold and that break code which prints them; a valid record last."""
    cycle: dict[str, Any] = {"id": "cycle", "goal": "x"}
    cycle["world"] = {"self": cycle}
    yield {"id": "keys", "goal": "x", "world": {"a": {(1, 2): 3}}}
    yield {(1, 2): 3}
    yield cycle
    yield {"id": "deep", "goal": "x", "world": {"a": nested(1500)}}
    yield {"id": "deeper than it is read back", "goal": "x", "world": {"a": nested(220)}}
    yield {"id": "digits", "goal": "x", "world": {"n": 10**5000}}
    yield {"id": "nan", "goal": "x", "world": {"n": float("nan")}}
    yield {"id": "infinite", "goal": "x", "expected": {"state": {"n": float("inf")}}}
    yield {"id": "mute", "goal": "x", "world": {"thing": Mute()}}
    yield {"id": "large", "goal": "x", "context": "y" * (17 * 2**20)}
    yield nested(100_000)
    yield Mute()
    yield GOOD


def test_the_counts_add_up(tmp_path: Path) -> None:
    """Four records: two scenarios and two in quarantine, each reason counted."""
    source = write(tmp_path / "a.jsonl", GOOD, "{", {**GOOD, "id": "b"}, {"id": "c", "user_responses": []})
    counts, rows = run(tmp_path, source)
    assert (counts.records, counts.scenarios, counts.quarantined) == (4, 2, 2)
    assert counts.reasons == {
        "broken JSON": 1,
        "no user: give user_responses (a script) or goal (a simulated user)": 1,
    }
    assert [scenario.id for scenario in scenarios(tmp_path)] == ["good", "b"]
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"user_responses": ["Hi.", " \n"]}, "user_responses: user turn 1 is empty"),
        ({"user_responses": ["Hi."] * 65}, "user_responses: over-long conversation: 65 user turns, at most 64"),
        (
            {"user_responses": ["x" * 8001]},
            "user_responses: over-long user turn 0: 8001 characters, at most 8000",
        ),
        ({"user_responses": "Hi."}, "user_responses: Input should be a valid tuple"),
        ({"colour": "red"}, "unknown field: colour"),
        ({"metadata": {"colour": "red"}}, "unknown field: metadata.colour"),
        ({"id": 7}, "id: Input should be a valid string"),
    ],
)
def test_an_invalid_record_is_quarantined_with_its_reason(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    """The reason names the field and its error; place and text are kept."""
    source = write(tmp_path / "a.jsonl", GOOD, {**GOOD, "id": "bad", **fields})
    _, (row,) = run(tmp_path, source)
    assert (row["source"], row["line"], row["reason"]) == (source.path, 2, reason)
    assert row["raw"] == json.dumps({**GOOD, "id": "bad", **fields})[:500]


def test_reasons_that_differ_in_a_number_are_counted_together(tmp_path: Path) -> None:
    """An empty first turn and an empty third turn have the same kind of reason."""
    bad = [{"id": "a", "user_responses": [""]}, {"id": "b", "user_responses": ["x", "y", ""]}]
    counts, _ = run(tmp_path, write(tmp_path / "a.jsonl", GOOD, *bad))
    assert counts.reasons == {"user_responses: user turn N is empty": 2}


def test_of_two_records_with_one_id_the_first_is_used(tmp_path: Path) -> None:
    """Across sources too; the reason names the place of the first record."""
    first = write(tmp_path / "a.jsonl", GOOD)
    second = write(tmp_path / "b.jsonl", {**GOOD, "id": "other"}, {**GOOD, "user_responses": ["Later."]})
    counts, (row,) = run(tmp_path, first, second)
    assert [scenario.id for scenario in scenarios(tmp_path)] == ["good", "other"]
    assert scenarios(tmp_path)[0].user_responses == ("Hi.",)
    assert (row["line"], row["reason"]) == (2, f"duplicate id good: taken by {first.path}:1")
    assert counts.reasons == {"duplicate id": 1}


def test_a_quarantined_record_does_not_take_its_id(tmp_path: Path) -> None:
    """A valid record with the id of a broken one is used."""
    counts, _ = run(tmp_path, write(tmp_path / "a.jsonl", {**GOOD, "user_responses": [""]}, GOOD))
    assert (counts.scenarios, counts.quarantined) == (1, 1)


def test_values_that_json_cannot_hold_are_quarantined(tmp_path: Path) -> None:
    """Objects and half surrogate pairs from a generator are quarantined, not raised."""
    counts, rows = run(tmp_path, PythonSource(kind="python", object=f"{__name__}:strange"))
    assert counts.scenarios == 1
    assert [row["reason"].partition(":")[0] for row in rows] == [
        "cannot be stored as JSON",
        "cannot be stored as JSON",
        "id",
    ]


def test_no_object_of_a_generator_stops_it(tmp_path: Path) -> None:
    """Thirteen objects, of which the last is a scenario; each other one is kept as text with its reason."""
    counts, rows = run(tmp_path, PythonSource(kind="python", object=f"{__name__}:hostile"))
    assert (counts.records, counts.scenarios, counts.quarantined) == (13, 1, 12)
    assert [scenario.id for scenario in scenarios(tmp_path)] == ["good"]
    assert [row["line"] for row in rows] == list(range(1, 13))
    assert all(row["raw"] and len(row["raw"]) < 1500 for row in rows)
    assert counts.reasons == {
        "cannot be stored as JSON": 9,
        "not a dict": 2,
        "over-long record": 1,
    }


def test_quarantine_is_the_same_in_every_process(tmp_path: Path) -> None:
    """An object's address in memory is left out: tables are artifacts named by their bytes."""
    run(tmp_path, PythonSource(kind="python", object=f"{__name__}:strange"))
    first = (tmp_path / "quarantine.parquet").read_bytes()
    kept = [object() for _ in range(100)]  # other addresses
    run(tmp_path, PythonSource(kind="python", object=f"{__name__}:strange"))
    assert (tmp_path / "quarantine.parquet").read_bytes() == first
    assert kept


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("NaN", "broken JSON: expected value at column"),
        ("1e999", "cannot be stored as JSON: expected value at line 1 column"),
        ("-1e999", "cannot be stored as JSON: "),
    ],
)
def test_a_number_that_would_become_null_is_quarantined(tmp_path: Path, number: str, reason: str) -> None:
    """1e999 is JSON and read as infinity."""
    line = f'{{"id": "a", "goal": "x", "world": {{"price": {number}}}}}'
    _, (row,) = run(tmp_path, write(tmp_path / "a.jsonl", GOOD, line))
    assert row["reason"].startswith(reason)


def test_a_file_name_that_is_not_utf8_is_stored_with_a_replacement_character(
    tmp_path: Path,
) -> None:
    """File names are bytes; a data set's files are listed from its folder."""
    folder = tmp_path / "sgd"
    for part in ("train", "dev"):
        (folder / part).mkdir(parents=True)
        (folder / part / "schema.json").write_text("[]")
        Path(os.fsdecode(bytes(folder / part) + b"/dialogues_\xff.json")).write_text(
            '[{"dialogue_id": 1}]', encoding="utf-8"
        )
    source = PublishedSource(kind="sgd", path=str(folder))
    _, rows = run(tmp_path, write(tmp_path / "a.jsonl", GOOD), source)
    assert [row["source"] for row in rows] == [f"{folder}/{part}/dialogues_?.json" for part in ("train", "dev")]


def test_more_quarantined_records_than_allowed_stop_the_run(tmp_path: Path) -> None:
    """4 of 5 is more than half: the message names the first three with their places, and the remedy."""
    source = write(tmp_path / "a.jsonl", "{", GOOD, GOOD, "[]", "{")
    with pytest.raises(BudgetError) as caught:
        run(tmp_path, source, share=0.5)
    message = str(caught.value)
    assert "4 of 5 records (80.0%) cannot be used, at most 50.0% may be" in message
    assert f"{source.path}:1 broken JSON" in message
    assert f"{source.path}:3 duplicate id good" in message
    assert f"{source.path}:4 not an object" in message
    assert f"{source.path}:5" not in message
    assert "raise scenarios.max_quarantined_fraction" in message


def test_exactly_the_allowed_fraction_is_allowed(tmp_path: Path) -> None:
    """1 of 2 is not more than half."""
    counts, _ = run(tmp_path, write(tmp_path / "a.jsonl", GOOD, "{"), share=0.5)
    assert counts.quarantined == 1


def test_a_table_without_scenarios_is_an_error(tmp_path: Path) -> None:
    """A run needs scenarios even where every record may be quarantined."""
    with pytest.raises(DataError, match=r"none of 1 records can be used\. First: .*a\.jsonl:1 broken JSON"):
        run(tmp_path, write(tmp_path / "a.jsonl", "{"), share=1.0)


def test_a_missing_source_stops_the_run(tmp_path: Path) -> None:
    """A missing one of several sources is not skipped."""
    absent = FileSource(kind="jsonl", path=str(tmp_path / "absent.jsonl"))
    with pytest.raises(DataError, match="no source file at"):
        run(tmp_path, write(tmp_path / "a.jsonl", GOOD), absent)


def test_the_same_sources_give_the_same_table(tmp_path: Path) -> None:
    """Tables are artifacts named by their bytes, so the bytes must not depend on the time."""
    source = write(tmp_path / "a.jsonl", GOOD, {"id": "b", "goal": "x"}, "{")
    run(tmp_path, source)
    first = (tmp_path / "scenarios.parquet").read_bytes(), (tmp_path / "quarantine.parquet").read_bytes()
    run(tmp_path, source)
    assert ((tmp_path / "scenarios.parquet").read_bytes(), (tmp_path / "quarantine.parquet").read_bytes()) == first


def test_progress_reports_the_number_of_records(tmp_path: Path) -> None:
    """The last report has all sources done and the final numbers."""
    seen: list[tuple[str, int, int, dict[str, float]]] = []
    with progress.observed(lambda *report: seen.append(report)):
        run(tmp_path, write(tmp_path / "a.jsonl", GOOD, "{"))
    assert seen[-1] == ("ingest", 1, 1, {"records": 2, "quarantined": 1})


def test_an_id_is_added_once() -> None:
    """The second record gets the place of the first; ids differ by case."""
    with SeenIds() as ids:
        assert ids.add("order-17", "a.jsonl", 3) is None
        assert ids.add("Order-17", "a.jsonl", 4) is None
        assert ids.add("order-17", "b.jsonl", 1) == "a.jsonl:3"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"arguments": {}}, "expected.calls: expected call 0 has no name"),
        ({"name": " ", "arguments": {}}, "expected.calls: expected call 0 has no name"),
        ({"name": "look_up"}, "expected.calls: expected call 0 has no arguments: look_up needs an object"),
        ({"name": "look_up", "arguments": "{}"}, "expected.calls: expected call 0 has no arguments"),
        (
            {"name": "look_up", "arguments": {}, "turn": "first"},
            "expected.calls: expected call 0 has a turn that is not",
        ),
        (
            {"name": "look_up", "arguments": {}, "compare_args": "order"},
            "expected.calls: expected call 0 has compare_args",
        ),
    ],
)
def test_an_expected_call_that_cannot_be_compared_is_quarantined(tmp_path: Path, call: Any, reason: str) -> None:
    """The environments would fail on it in the middle of a run."""
    good, broken = (
        {"id": name, "goal": "x", "expected": {"calls": calls}} for name, calls in (("a", []), ("b", [call]))
    )
    _, (row,) = run(tmp_path, write(tmp_path / "s.jsonl", good, broken))
    assert (row["line"], row["reason"][: len(reason)]) == (2, reason)


@pytest.mark.parametrize("key", ["inputSchema", "input_schema"])
def test_parameters_of_a_tool_under_another_name_are_not_lost(tmp_path: Path, key: str) -> None:
    """As MCP and Anthropic write them: without the reason the agent would read a tool without parameters."""
    good, broken = {"id": "a", "goal": "x"}, {"id": "b", "goal": "y", "tools": [{"name": "f", key: {}}]}
    _, (row,) = run(tmp_path, write(tmp_path / "s.jsonl", good, broken))
    assert f"tool f has its parameters under {key}. Write them under parameters" in row["reason"]
