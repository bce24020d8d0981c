"""Chats in an export of LangSmith's runs, in their documented format (docs.langchain.com/langsmith/run-data-format).

The file is JSON lines or a JSON list with one run each, or an object with a list under `runs`. These fields of a run
are read:

    id, trace_id, start_time, run_type, parent_run_id
    inputs         {"messages": […], "tools": […]}, messages in OpenAI's, Anthropic's or LangChain's format
    outputs        a chat completion, a message, {"messages": […]}, or LangChain's generations
    extra          metadata.session_id, thread_id or conversation_id: the thread; invocation_params.tools

Runs of one thread, or else of one trace, are a chat. Runs of type `llm` are read. If there are none with messages, the
root runs are read instead. `inputs`, `outputs` and `extra` may be JSON in a text. Not covered: text
completions, and the Parquet files of bulk exports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.config.chats import LoggedUsers
from grpo.scenarios.logged_chat import json_value
from grpo.scenarios.readers.messages.langchain_messages import openai_messages, reply_messages
from grpo.scenarios.readers.traces.logged_runs import LoggedRun, read_runs
from grpo.scenarios.readers.traces.trace_file import read_entries
from grpo.scenarios.records import SourceRecord

SOURCE = "langsmith"
"""`metadata.source` of these scenarios."""
_THREAD = ("session_id", "thread_id", "conversation_id")


def read_langsmith(path: Path, *, users: LoggedUsers) -> Iterator[SourceRecord]:
    """Read one record per thread or trace. A line that is not a run becomes a record with a problem."""
    return read_runs(read_entries(path), _runs, source=SOURCE, users=users)


def _runs(data: dict[str, Any]) -> Sequence[LoggedRun]:
    runs = data["runs"] if isinstance(data.get("runs"), list) else [data]
    return [_run(run) for run in runs]


def _run(run: Any) -> LoggedRun:
    if not isinstance(run, Mapping):
        raise ValueError(f"run is not an object: {type(run).__name__}")
    extra, inputs = _map(parsed(run.get("extra"))), _map(parsed(run.get("inputs")))
    metadata = _map(extra.get("metadata"))
    thread = next((metadata[name] for name in _THREAD if metadata.get(name)), None)
    chat = thread or run.get("trace_id") or run.get("id")
    if not isinstance(chat, (str, int)) or not chat:
        raise ValueError(f"run without a trace: trace_id and id are missing. It has {', '.join(run) or 'no field'}")
    is_model = run.get("run_type") == "llm"
    is_root = not run.get("parent_run_id") and not run.get("parent_run_ids")
    messages = None
    if (is_model or is_root) and "messages" in inputs:
        messages = _messages(inputs["messages"], parsed(run.get("outputs")))
    tools = inputs.get("tools", _map(extra.get("invocation_params")).get("tools"))
    time = run.get("start_time")
    return LoggedRun(chat=str(chat), time=time, messages=messages, tools=tools, is_model=is_model)


def _messages(inputs: Any, outputs: Any) -> list[Any]:
    """Messages that the model read, and the reply. The outputs of a graph are the whole chat, with the inputs."""
    read, replies = openai_messages(inputs), reply_messages(outputs)
    if not isinstance(read, list):
        raise ValueError(f"messages are not a list: {type(read).__name__}")
    return replies if replies[: len(read)] == read else [*read, *replies]


def parsed(value: Any) -> Any:
    """Object or list of a field that may be JSON in a text. `7` and `true` stay texts, because they may be replies."""
    inner = json_value(value) if isinstance(value, str) else value
    return inner if isinstance(inner, (dict, list)) else value


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
