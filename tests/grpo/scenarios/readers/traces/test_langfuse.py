"""Exports of Langfuse."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import TraceSource
from grpo.errors import DataError
from grpo.scenarios.guess import guess_source
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records

ASKED = {"role": "user", "content": "A?"}
REPLY = {"role": "assistant", "content": "a"}


def read(tmp_path: Path, document: Any, name: str = "export.json") -> list[SourceRecord]:
    """Records of a JSON document."""
    path = tmp_path / name
    path.write_text(json.dumps(document, indent=1))
    return list(read_records(TraceSource(kind="langfuse", path=str(path))))


def generation(trace: str, second: int, given: Any, output: Any, **changes: Any) -> dict[str, Any]:
    """A row of the blob storage."""
    return {
        "id": f"{trace}-{second}",
        "trace_id": trace,
        "type": "GENERATION",
        "start_time": f"2026-11-20 09:00:{second:02}.000000",
        "input": given,
        "output": output,
        **changes,
    }


def fields(record: SourceRecord) -> tuple[Any, ...]:
    """Id, turns of the user and references."""
    assert record.data is not None
    return record.data["id"], record.data["user_responses"], record.data["expected"]["responses"]


def test_generations_of_one_session_are_a_chat(tmp_path: Path) -> None:
    """Input and output as JSON in texts; a span has no messages; another trace is another chat."""
    second = [ASKED, REPLY, {"role": "user", "content": "B?"}]
    rows = [
        generation(
            "t2", 2, json.dumps({"messages": second}), json.dumps({"role": "assistant", "content": "b"}), session_id="s"
        ),
        generation("t1", 1, json.dumps([ASKED]), json.dumps(REPLY), session_id="s"),
        {**generation("t1", 1, "x", "y", session_id="s"), "type": "SPAN"},
        generation("t3", 3, [ASKED], "a"),
    ]
    chat, alone = read(tmp_path, rows)
    assert fields(chat) == ("s", ["A?", "B?"], ["a", "b"])
    assert fields(alone) == ("t3", ["A?"], ["a"])


def test_a_trace_of_the_api_is_read_by_its_generations(tmp_path: Path) -> None:
    """Its own input and output are not a second turn."""
    inner = {"id": "o", "traceId": "t", "type": "GENERATION", "startTime": "1", "input": [ASKED], "output": REPLY}
    trace = {"id": "t", "sessionId": "s", "timestamp": "0", "input": "A?", "output": "a", "observations": [inner]}
    (chat,) = read(tmp_path, trace)
    assert fields(chat) == ("s", ["A?"], ["a"])


def test_a_session_with_traces_of_text_is_a_chat(tmp_path: Path) -> None:
    """Input of a trace is the user, output the agent; 8:30 in UTC+2 is before 9:00 in UTC+1."""
    traces = [
        {"id": name, "timestamp": time, "input": f"{name}?", "output": name}
        for name, time in (("b", "2026-11-20T09:00:00+01:00"), ("a", "2026-11-20T08:30:00+02:00"))
    ]
    (chat,) = read(tmp_path, {"id": "s", "traces": traces})
    assert fields(chat) == ("s", ["a?", "b?"], ["a", "b"])


def test_rows_that_are_no_chat_have_a_reason(tmp_path: Path) -> None:
    """An event alone, a row without an id, input that is a number: 3 of 3 records."""
    rows = [{**generation("e", 1, None, None), "type": "EVENT"}, {"name": "x"}, generation("n", 2, 7, "a")]
    problems = [(record.problem or "").partition(":")[0] for record in read(tmp_path, rows)]
    assert problems == ["entry without a trace", "no messages", "no messages"]


def table(tmp_path: Path, rows: list[dict[str, Any]], *, texts_in_json: bool) -> Path:
    """A CSV file as Langfuse's pages export it: objects as JSON, and in its earlier versions texts as JSON too."""
    path = tmp_path / "export.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        for row in rows:
            cells = {
                name: cell if isinstance(cell, str) and not texts_in_json else json.dumps(cell)
                for name, cell in row.items()
            }
            writer.writerow({name: "" if cell == "null" else cell for name, cell in cells.items()})
    return path


TRACES = [
    {"bookmarked": False, "id": "t2", "timestamp": "2026-11-20T09:01:00.000Z", "name": "chat", "sessionId": "s",
     "input": [ASKED, REPLY, {"role": "user", "content": "B?"}], "output": {"role": "assistant", "content": "b"},
     "tags": []},
    {"bookmarked": False, "id": "t1", "timestamp": "2026-11-20T09:00:00.000Z", "name": "chat", "sessionId": "s",
     "input": "A?", "output": "a", "tags": []},
    {"bookmarked": False, "id": "t3", "timestamp": "2026-11-20T09:02:00.000Z", "name": "chat", "sessionId": None,
     "input": "C?", "output": None, "tags": ["x"]},
]  # fmt: skip


@pytest.mark.parametrize("texts_in_json", [True, False])
def test_a_csv_file_of_traces_is_guessed_and_read_as_json_is(tmp_path: Path, texts_in_json: bool) -> None:
    """Two traces of one session in the order of their times, and one trace without a session."""
    source = guess_source(table(tmp_path, TRACES, texts_in_json=texts_in_json))
    assert source.kind == "langfuse"
    session, alone = read_records(source)
    assert fields(session) == ("s", ["A?", "B?"], ["a", "b"])
    assert fields(alone) == ("t3", ["C?"], [])


def test_observations_without_a_type_are_generations_if_they_name_a_model(tmp_path: Path) -> None:
    """As the table of generations exports them. A span without a model is not read."""
    rows = [
        {
            "id": "o1",
            "traceId": "t",
            "startTime": "2026-11-20T09:00:00Z",
            "model": "m",
            "input": [ASKED],
            "output": "a",
        },
        {"id": "o2", "traceId": "t", "startTime": "2026-11-20T09:00:01Z", "model": None, "input": "x", "output": "y"},
    ]
    (chat,) = read_records(guess_source(table(tmp_path, rows, texts_in_json=False)))
    assert fields(chat) == ("t", ["A?"], ["a"])


SESSION = {"id": "s", "createdAt": "2026-11-20T09:00:00Z", "userIds": ["u"], "countTraces": 2, "totalCost": 0.1}


def test_a_table_of_sessions_is_refused_with_the_table_to_export(tmp_path: Path) -> None:
    """It has counts and no messages, in CSV and in JSON, in a guess and in a source."""
    reason = "table of sessions has counts and costs, and no messages. Export its table of traces or of observations"
    path = table(tmp_path, [SESSION], texts_in_json=True)
    with pytest.raises(DataError, match=reason):
        guess_source(path)
    (in_csv,) = read_records(TraceSource(kind="langfuse", path=str(path)))
    (in_json,) = read(tmp_path, [SESSION])
    assert [reason in (record.problem or "") for record in (in_csv, in_json)] == [True, True]
