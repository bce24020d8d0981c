"""Exports of LangSmith."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo.config.scenarios import TraceSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records

SYSTEM = {"role": "system", "content": "Be kind."}


def ask(text: str) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, Any]:
    """A message of the agent."""
    return {"role": "assistant", "content": text}


def run(trace: str, time: str, *messages: Any, answer: Any, **changes: Any) -> dict[str, Any]:
    """A call of a model, as `wrap_openai` logs it."""
    return {
        "id": f"{trace}-{time}",
        "trace_id": trace,
        "run_type": "llm",
        "start_time": f"2026-11-20T09:{time}:00",
        "inputs": {"messages": [SYSTEM, *messages], "model": "m"},
        "outputs": {"choices": [{"message": answer}]},
        **changes,
    }


def records(tmp_path: Path, *items: Any, **settings: Any) -> list[SourceRecord]:
    """Records of JSON lines."""
    path = tmp_path / "runs.jsonl"
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in items))
    return list(read_records(TraceSource(kind="langsmith", path=str(path), **settings)))


def in_thread(name: str) -> dict[str, Any]:
    """Metadata of a thread."""
    return {"metadata": {"thread_id": name}}


def test_traces_of_one_thread_are_a_chat(tmp_path: Path) -> None:
    """In the order of their times, whatever that of the lines; another thread is another chat."""
    second = run("t2", "02", ask("A?"), reply("a"), ask("B?"), answer=reply("b"), extra=in_thread("x"))
    first = run("t1", "01", ask("A?"), answer=reply("a"), extra=json.dumps(in_thread("x")))
    other = run("t3", "03", ask("C?"), answer=reply("c"))
    chat, alone = records(tmp_path, second, first, other)
    assert chat.data is not None
    assert alone.data is not None
    assert (chat.data["id"], chat.line, chat.data["context"]) == ("x", 1, "Be kind.")
    assert (chat.data["user_responses"], chat.data["expected"]["responses"]) == (["A?", "B?"], ["a", "b"])
    assert (alone.data["id"], alone.line) == ("t3", 3)


def test_messages_of_langchain_are_read(tmp_path: Path) -> None:
    """Constructors in a list of lists, calls with `args`, a generation as reply, tools of the invocation."""

    def constructor(kind: str, **fields: Any) -> dict[str, Any]:
        return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": fields}

    read = [
        constructor("HumanMessage", content="Where is 7?", type="human"),
        constructor("AIMessage", content="", tool_calls=[{"name": "look_up", "args": {"order": "7"}, "id": "c1"}]),
        {"type": "tool", "content": "lost", "tool_call_id": "c1"},
    ]
    tool = {"type": "function", "function": {"name": "look_up", "description": "Look up.", "parameters": {}}}
    line = run("t", "01", answer={}, extra={"invocation_params": {"tools": [tool]}})
    line["inputs"] = json.dumps({"messages": [read]})
    line["outputs"] = {"generations": [[{"text": "Lost.", "message": constructor("AIMessage", content="Lost.")}]]}
    (chat,) = records(tmp_path, line)
    assert chat.data is not None
    assert (chat.data["user_responses"], chat.data["expected"]["responses"]) == (["Where is 7?"], ["Lost."])
    assert chat.data["world"]["recorded"][0]["arguments"] == {"order": "7"}
    assert chat.data["tools"][0]["description"] == "Look up."


def test_root_runs_are_read_where_no_model_was_logged(tmp_path: Path) -> None:
    """The outputs of a graph repeat its inputs; the chain inside of it is left out."""
    root = run("t", "01", answer={}, run_type="chain")
    root["inputs"], root["outputs"] = {"messages": [ask("A?")]}, {"messages": [ask("A?"), reply("a")]}
    child = run("t", "02", ask("inner"), answer=reply("b"), run_type="chain", parent_run_id="t-01")
    (chat,) = records(tmp_path, root, child)
    assert chat.data is not None
    assert (chat.data["user_responses"], chat.data["expected"]["responses"]) == (["A?"], ["a"])


def test_a_chat_that_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    """A trace of tools, one of two agents, a run without an id, a line that is not JSON: 4 of 5 records."""
    tool = {"id": "a", "trace_id": "a", "run_type": "tool", "inputs": {}, "outputs": {}}
    other = run("two", "02", ask("A?"), answer=reply("a"))
    other["inputs"]["messages"][0] = {"role": "system", "content": "Be brief."}
    items = (tool, run("two", "01", ask("A?"), answer=reply("a")), other, {"name": "x"}, "{")
    read = records(tmp_path, *items, run("good", "01", ask("A?"), answer=reply("a")))
    problems = [record.problem for record in read if record.problem]
    assert len(read) == 5
    assert [problem.partition(":")[0] for problem in problems] == [
        "run without a trace",
        "broken JSON",
        "no messages",
        "several system prompts",
    ]


def test_an_answer_of_the_api_is_read(tmp_path: Path) -> None:
    """One object with the runs in a list."""
    path = tmp_path / "answer.json"
    path.write_text(json.dumps({"runs": [run("t", "01", ask("A?"), answer=reply("a"))]}, indent=1))
    (chat,) = read_records(TraceSource(kind="langsmith", path=str(path), users="goal"))
    assert chat.data is not None
    assert chat.data["goal"] == "Reason: A?"
