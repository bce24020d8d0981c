"""Chats in exports of spans: Braintrust's logs, Weave's calls, MLflow's traces, and OpenInference's spans.

    braintrust      root_span_id, created, span_attributes.type "llm", input, output, metadata.tools
    weave           trace_id, thread_id, started_at, op_name, inputs {"messages": […], "tools": […]}, output
    mlflow          a trace: info.trace_id, data.spans with the attributes mlflow.spanInputs, mlflow.spanOutputs
    openinference   context.trace_id, start_time, attributes.llm.input_messages.0.message.content, …

The file is JSON lines or a JSON list with one span each, or for MLflow one trace each. Spans of one session or thread,
or else of one trace, are a chat. Spans of a model are read. If none of them has messages, the input and output of the
root spans are read instead. OpenInference's attributes, which Phoenix and Arize export, may be one key with dots, or
objects. Spans of OpenTelemetry with its own attributes are read by the same kind, see `gen_ai_spans`. Not covered:
scores, feedback, costs and pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grpo.config.chats import LoggedUsers
from grpo.scenarios.readers.files.places import parsed, value_at
from grpo.scenarios.readers.messages.openai_format import reply_of
from grpo.scenarios.readers.traces.exchanges import read_exchange
from grpo.scenarios.readers.traces.gen_ai_spans import SESSIONS, collected_spans, exchange_of, with_attributes
from grpo.scenarios.readers.traces.logged_runs import LoggedRun, read_runs
from grpo.scenarios.readers.traces.trace_file import read_entries
from grpo.scenarios.records import SourceRecord

Span = Mapping[str, Any]
_DIGITS = 30  # a longer number is not a time
_NANOSECONDS = 10**15  # a greater number is a time in nanoseconds, because in milliseconds it would be after 33,000


def read_spans(kind: str, path: Path, *, users: LoggedUsers) -> Iterator[SourceRecord]:
    """Read one record per session, thread or trace. A line that is not a span becomes a record with a problem."""
    return read_runs(read_entries(path), partial(_runs, _KINDS[kind]), source=kind, users=users)


def _runs(read: Callable[[Span], LoggedRun | list[LoggedRun]], data: dict[str, Any]) -> Sequence[LoggedRun]:
    runs = read(data)
    return runs if isinstance(runs, list) else [runs]


def _braintrust(span: Span) -> LoggedRun:
    chat = _first(span, "metadata.session_id", "metadata.thread_id", "metadata.conversation_id", "root_span_id", "id")
    is_root = not span.get("span_parents") and span.get("root_span_id") in (None, span.get("span_id"))
    is_model = value_at(span, "span_attributes.type") == "llm"
    time = _first(span, "metrics.start", "created")
    exchange = {"input": span.get("input"), "output": span.get("output"), "tools": value_at(span, "metadata.tools")}
    return _run(span, chat, time, exchange, is_model=is_model, is_root=is_root)


def _weave(span: Span) -> LoggedRun:
    chat, inputs = _first(span, "thread_id", "trace_id", "id"), parsed(span.get("inputs"))
    is_model = isinstance(inputs, Mapping) and isinstance(inputs.get("messages"), list)
    if isinstance(inputs, Mapping):  # `self` is the object that a method was called on
        inputs = {name: value for name, value in inputs.items() if name != "self"}
    exchange = {"input": inputs, "output": span.get("output")}
    return _run(span, chat, span.get("started_at"), exchange, is_model=is_model, is_root=not span.get("parent_id"))


def _mlflow(trace: Span) -> list[LoggedRun]:
    spans = value_at(trace, "data.spans")
    if not isinstance(spans, list):
        raise ValueError(f"trace without data.spans: it has {', '.join(trace) or 'no field'}")
    places = ("info.trace_metadata.mlflow.trace.session", "info.trace_id", "info.request_id")
    chat = _first(trace, *places)
    return [_mlflow_run(span, chat) for span in spans if isinstance(span, Mapping)]


def _mlflow_run(span: Span, chat: Any) -> LoggedRun:
    """A span whose attributes are JSON in texts: a type in quotes, inputs and outputs."""
    attributes = {name: parsed(value) for name, value in (span.get("attributes") or {}).items()}
    kind = str(attributes.get("mlflow.spanType")).strip('"')
    time = _first(span, "start_time_unix_nano", "start_time_ns", "start_time")
    exchange = {"input": attributes.get("mlflow.spanInputs"), "output": attributes.get("mlflow.spanOutputs")}
    is_root = not _first(span, "parent_span_id", "parent_id")
    return _run(span, chat, _seconds(time), exchange, is_model=kind in ("CHAT_MODEL", "LLM"), is_root=is_root)


def _openinference(span: Span) -> LoggedRun | list[LoggedRun]:
    spans = collected_spans(span)
    return _openinference_run(with_attributes(span)) if spans is None else [_openinference_run(item) for item in spans]


def _openinference_run(span: Span) -> LoggedRun:
    """A span with the attributes of OpenInference, or with OpenTelemetry's own."""
    span = _nested(span)
    attributes = span.get("attributes")
    if not isinstance(attributes, Mapping):
        raise ValueError(f"span without attributes: it has {', '.join(span) or 'no field'}")
    traces = ("context.trace_id", "trace_id", "traceId", "context.span_id")
    chat = _first(span, "attributes.session.id", *SESSIONS, *traces)
    time = _first(span, "start_time", "startTimeUnixNano", "start_time_unix_nano")
    is_root = not _first(span, "parent_id", "parent_span_id", "parentSpanId")
    if (exchange := exchange_of(attributes)) is not None:
        return _run(span, chat, _seconds(time), exchange, is_model=True, is_root=is_root)
    is_model = "LLM" in (span.get("span_kind"), value_at(attributes, "openinference.span.kind"))
    exchange = {
        "input": _messages(value_at(attributes, "llm.input_messages")) or _value(attributes, "input"),
        "output": _messages(value_at(attributes, "llm.output_messages")) or _value(attributes, "output"),
        "tools": _tools(value_at(attributes, "llm.tools")),
    }
    return _run(span, chat, _seconds(time), exchange, is_model=is_model, is_root=is_root)


def _seconds(time: Any) -> Any:
    """A time in nanoseconds as seconds. Other times stay as they are."""
    number = int(time) if isinstance(time, str) and time.isdecimal() and len(time) < _DIGITS else time
    return number / 1e9 if isinstance(number, int) and number > _NANOSECONDS else time


def _run(span: Span, chat: Any, time: Any, exchange: Span, *, is_model: bool, is_root: bool) -> LoggedRun:
    """A run with the messages and the reply of a span of a model, or of the root. Other spans have no messages."""
    if not isinstance(chat, (str, int)) or not chat:
        raise ValueError(f"span without a trace: it has {', '.join(span) or 'no field'}")
    messages, tools, ignored = None, None, list[str]()
    if (is_model or is_root) and exchange["input"] not in (None, "", [], {}):
        logged = read_exchange(exchange, {})
        record, ignored = logged.record, [*logged.ignored]
        tools, response = record.get("tools"), record.get("response")
        system = [{"role": "system", "content": record["system"]}] if record.get("system") else []
        messages = [*system, *record["messages"], *([] if response is None else [_reply(response, ignored)])]
    return LoggedRun(
        chat=str(chat), time=time, messages=messages, tools=tools, is_model=is_model, ignored=tuple(ignored)
    )


def _reply(response: Any, ignored: list[str]) -> dict[str, Any]:
    return {"role": "assistant", "content": response} if isinstance(response, str) else reply_of(response, ignored)


def _first(span: Span, *places: str) -> Any:
    return next((value for place in places if (value := value_at(span, place)) not in (None, "")), None)


def _nested(value: Any) -> Any:
    """Objects and lists of keys with dots: {"a.0.b": 1, "a.1.b": 2} → {"a": [{"b": 1}, {"b": 2}]}."""
    if isinstance(value, list):
        return [_nested(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    nested: dict[str, Any] = {}
    for name, item in value.items():
        *outer, last = name.split(".")
        place = nested
        for key in outer:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ValueError(f"{name} is below a value that is not an object")
        inner = _nested(item)
        known = place.get(last)
        place[last] = {**known, **inner} if isinstance(known, dict) and isinstance(inner, dict) else inner
    return _with_lists(nested)


def _with_lists(value: Any) -> Any:
    """Objects with the keys 0, 1, … become lists."""
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(item) for key, item in value.items()}
    if inner and all(key.isdecimal() for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


def _value(attributes: Span, side: str) -> Any:
    """Input or output of a span, which is JSON if its type says so."""
    value, kind = (value_at(attributes, f"{side}.{name}") for name in ("value", "mime_type"))
    return parsed(value) if kind == "application/json" else value


def _messages(value: Any) -> list[Any]:
    """Messages in OpenAI's format, from `{"message": {"role", "content", "tool_calls": [{"tool_call": {…}}]}}`."""
    return [_message(_inside(item, "message")) for item in value] if isinstance(value, list) else []


def _message(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    fields = {name: item for name, item in message.items() if name not in ("contents", "tool_calls")}
    if isinstance(calls := message.get("tool_calls"), list):
        fields["tool_calls"] = [_inside(call, "tool_call") for call in calls]
    if isinstance(parts := message.get("contents"), list):
        fields["content"] = [_inside(part, "message_content") for part in parts]
    return fields


def _tools(value: Any) -> list[Any] | None:
    """Tools from `{"tool": {"json_schema": "…"}}`."""
    if not isinstance(value, list):
        return None
    tools = [_inside(item, "tool") for item in value]
    return [parsed(tool.get("json_schema", tool)) if isinstance(tool, Mapping) else tool for tool in tools]


def _inside(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) and name in value else value


_KINDS: dict[str, Callable[[Span], LoggedRun | list[LoggedRun]]] = {
    "braintrust": _braintrust,
    "weave": _weave,
    "mlflow": _mlflow,
    "openinference": _openinference,
}
