"""Spans of OpenTelemetry with its attributes of generative AI, and the files in which its collector writes spans.

    {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "startTimeUnixNano": "1763629200000000000",
        "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}, …]}]}]}]}

    gen_ai.input.messages    [{"role": "user", "parts": [{"type": "text", "content": "Where is order 7?"}]}]
    gen_ai.output.messages   [{"role": "assistant", "parts": […], "finish_reason": "stop"}]
    gen_ai.prompt.0.content, gen_ai.completion.0.content, gen_ai.completion.0.tool_calls.0.name        OpenLLMetry

The attributes are objects here, see `spans`. Messages that are events of a span, and not attributes, are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo.scenarios.readers.files.places import parsed, value_at
from grpo.scenarios.readers.messages.api_dialects import split_parts

_SCOPES = ("scopeSpans", "instrumentationLibrarySpans")
_VALUES = ("stringValue", "intValue", "doubleValue", "boolValue")
_CUT_OFF = ("length", "max_tokens", "content_filter")
SESSIONS = (
    "attributes.gen_ai.conversation.id",
    *(f"attributes.traceloop.association.properties.{name}" for name in ("session_id", "thread_id", "conversation_id")),
)
"""Places of the conversation of a span."""


def collected_spans(data: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Spans of a line of the collector's file, with their attributes as an object. None for every other record."""
    if "resourceSpans" not in data:
        return None
    scopes = [
        scope for item in _objects(data["resourceSpans"]) for name in _SCOPES for scope in _objects(item.get(name))
    ]
    return [with_attributes(span) for scope in scopes for span in _objects(scope.get("spans"))]


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def with_attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """A span with its attributes as an object: [{"key": "a", "value": {"stringValue": "b"}}] → {"a": "b"}."""
    given = span.get("attributes")
    if not isinstance(given, list):
        return dict(span)
    return {**span, "attributes": {str(item.get("key")): _value(item.get("value")) for item in _objects(given)}}


def _value(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if isinstance(listed := value_at(value, "arrayValue.values"), list):
        return [_value(item) for item in listed]
    if isinstance(pairs := value_at(value, "kvlistValue.values"), list):
        return {str(item.get("key")): _value(item.get("value")) for item in _objects(pairs)}
    return next((value[name] for name in _VALUES if name in value), None)


def exchange_of(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Input, output and tools of a call of a model in OpenAI's format. None if the span has no messages."""
    given = parsed(value_at(attributes, "gen_ai.input.messages")) or value_at(attributes, "gen_ai.prompt")
    replied = parsed(value_at(attributes, "gen_ai.output.messages")) or value_at(attributes, "gen_ai.completion")
    if not isinstance(given, list):
        return None
    tools = parsed(value_at(attributes, "gen_ai.tool.definitions")) or value_at(attributes, "llm.request.functions")
    system = parsed(value_at(attributes, "gen_ai.system_instructions"))
    instructions = [{"role": "system", "parts": system}] if isinstance(system, list) and system else []
    output = [message for item in _objects(replied) for message in _messages(item, "assistant")]
    return {
        "input": [message for item in (*instructions, *_objects(given)) for message in _messages(item, "user")],
        "output": output or None,
        "tools": [_tool(tool) for tool in tools] if isinstance(tools, list) else None,
    }


def _messages(message: Mapping[str, Any], role: str) -> Iterator[dict[str, Any]]:
    kept = {key: value for key, value in message.items() if key not in ("finish_reason", "tool_calls", "content")}
    content = message.get("content")
    parts = parsed(content)
    is_list = isinstance(parts, list) and all(isinstance(part, Mapping) and "type" in part for part in parts)
    calls = [_call(call) for call in _objects(message.get("tool_calls"))]
    yield from split_parts(
        {
            **kept,
            "role": message.get("role") or role,
            **({"content": parts if is_list else content} if "content" in message or "parts" not in message else {}),
            **({"tool_calls": calls} if calls else {}),
            **({"weight": 0} if message.get("finish_reason") in _CUT_OFF else {}),
        }
    )


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    if "function" in call:
        return dict(call)
    return {"id": call.get("id"), "function": {"name": call.get("name"), "arguments": call.get("arguments")}}


def _tool(tool: Any) -> Any:
    """A tool with its parameters as an object. OpenLLMetry writes them as JSON in a text."""
    tool = parsed(tool)
    if isinstance(tool, Mapping) and isinstance(tool.get("parameters"), str):
        return {**tool, "parameters": parsed(tool["parameters"])}
    return tool
