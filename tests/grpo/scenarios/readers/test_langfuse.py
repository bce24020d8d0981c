"""Exports of Langfuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo.config.scenarios import TraceSource
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
