"""Chats in an export of Langfuse, in its documented fields (langfuse.com/docs/api-and-data-platform).

The file is JSON lines, a JSON list or a CSV file of observations or traces, from the blob storage, the tables of the
UI or the API. It may also be one trace with its `observations`, or one session with its `traces`. `trace_id` may be
spelt `traceId`, and so on:

    id, trace_id, session_id, type, start_time or timestamp
    input          messages in OpenAI's or LangChain's format, {"messages": […], "tools": […]}, or the user's text
    output         a message, a chat completion, or a text

Entries of one session, or else of one trace, are a chat. Observations of type GENERATION are read, and observations
without a type that name a model, as a table of generations has them. If none of them has messages, the input and output
of the traces are read instead. `input` and `output` may be JSON in a text. Not covered: scores, comments and pictures.
The table of sessions has only counts and costs, so its rows are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.config.chats import LoggedUsers
from grpo.scenarios.readers.messages.langchain_messages import openai_messages, reply_messages
from grpo.scenarios.readers.traces.langsmith import parsed
from grpo.scenarios.readers.traces.logged_runs import LoggedRun, read_runs
from grpo.scenarios.readers.traces.trace_file import read_entries
from grpo.scenarios.records import SourceRecord

SOURCE = "langfuse"
"""`metadata.source` of these scenarios."""
SESSIONS_COLUMN = "countTraces"
"""Column that only Langfuse's table of sessions has."""
NO_MESSAGES = (
    "a row of Langfuse's table of sessions has counts and costs, and no messages. Export its table of traces or of "
    "observations, in which sessionId joins the messages of a session"
)


def read_langfuse(path: Path, *, users: LoggedUsers) -> Iterator[SourceRecord]:
    """Read one record per session or trace. A line that is neither observation nor trace has a problem."""
    return read_runs(read_entries(path), _runs, source=SOURCE, users=users)


def _runs(data: dict[str, Any]) -> Sequence[LoggedRun]:
    if SESSIONS_COLUMN in data and "traces" not in data:
        raise ValueError(NO_MESSAGES)
    if isinstance(data.get("traces"), list):
        return [run for trace in data["traces"] for run in _trace(trace, session=data.get("id"))]
    if isinstance(data.get("observations"), list):
        return _trace(data, session=None)
    return [_run(data, chat=None)]


def _trace(trace: Any, *, session: Any) -> list[LoggedRun]:
    """A trace and its observations, which belong to its session."""
    if not isinstance(trace, Mapping):
        raise ValueError(f"trace is not an object: {type(trace).__name__}")
    inside = trace.get("observations")
    observations = inside if isinstance(inside, list) else []
    chat = session or _field(trace, "session_id") or trace.get("id")
    entries = [item for item in observations if isinstance(item, Mapping)]  # a list from the API has only ids here
    return [_run(trace, chat=chat), *(_run(entry, chat=chat) for entry in entries)]


def _run(entry: Mapping[str, Any], *, chat: Any) -> LoggedRun:
    chat = chat or _field(entry, "session_id") or _field(entry, "trace_id") or entry.get("id")
    if not isinstance(chat, (str, int)) or not chat:
        raise ValueError(f"entry without a trace: trace_id and id are missing. It has {', '.join(entry) or 'no field'}")
    kind = entry.get("type")
    is_trace = kind is None and not _field(entry, "trace_id")
    is_model = kind == "GENERATION" or (kind is None and not is_trace and bool(_field(entry, "model")))
    time = _field(entry, "start_time") or entry.get("timestamp")
    messages, tools = None, None
    if is_model or is_trace:
        messages, tools = _messages(parsed(entry.get("input")), parsed(entry.get("output")))
    return LoggedRun(chat=str(chat), time=time, messages=messages, tools=tools, is_model=is_model)


def _messages(given: Any, output: Any) -> tuple[list[Any] | None, Any]:
    """Messages that the model read, with its reply, and the tools. Without messages, None instead of them."""
    tools = None
    if isinstance(given, Mapping):
        given, tools = given.get("messages"), given.get("tools")
    if isinstance(given, str) and given:
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        return None, tools
    replies = [{"role": "assistant", "content": output}] if isinstance(output, str) else reply_messages(output)
    return [*openai_messages(given), *replies], tools


def _field(entry: Mapping[str, Any], name: str) -> Any:
    """A field in either spelling: `session_id` or `sessionId`."""
    first, *others = name.split("_")
    return entry.get(name) or entry.get(first + "".join(part.capitalize() for part in others))
