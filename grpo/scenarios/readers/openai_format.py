"""Messages and tools in the format of OpenAI's chat completions.

    {"role": "assistant", "content": null, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{\\"order\\": \\"7\\"}"}}]}
    {"role": "tool", "tool_call_id": "call_1", "content": "lost"}

Roles are system, developer, user, assistant and tool. Content is a text, null, or a list of text parts; a picture,
sound or file is a `ValueError`. Arguments are JSON in a text, or an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from grpo.messages import Role
from grpo.scenarios.data_errors import excerpt
from grpo.scenarios.logged_chat import MAX_MESSAGES, LoggedCall, LoggedMessage

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text")
_SHOWN = 80  # characters of a value in a reason


def parse_messages(value: Any) -> tuple[LoggedMessage, ...]:
    """Parse a list of messages. Raises `ValueError` with the number and fault of the first that cannot be read."""
    if not isinstance(value, list):
        raise ValueError(f"messages are not a list: {type(value).__name__}")
    if len(value) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: {len(value)} messages, at most {MAX_MESSAGES}")
    return tuple(parse_message(message, number) for number, message in enumerate(value))


def parse_message(message: Any, number: int) -> LoggedMessage:
    """Parse one message; `number` is its place in the chat."""
    if not isinstance(message, Mapping):
        raise ValueError(f"message is not an object: message {number} is {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ValueError(f"unknown role: {excerpt(role, _SHOWN)} in message {number}; known are {', '.join(_ROLES)}")
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise ValueError(f"tool_calls are not a list: {type(calls).__name__} in message {number}")
    if calls and role != "assistant":
        raise ValueError(f"tool call of another role: {role} in message {number}; only the assistant calls tools")
    return LoggedMessage(
        role=_ROLES[role],
        content=_text(message.get("content"), number),
        calls=tuple(_call(call, number) for call in calls),
        answers=_id(message.get("tool_call_id")) if role == "tool" else None,
    )


def _text(content: Any, number: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ValueError(f"content is not text: {type(content).__name__} in message {number}")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ValueError(f"content is not text: part {excerpt(kind, _SHOWN)} in message {number}")
    return "\n".join(texts)


def _call(call: Any, number: int) -> LoggedCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError(f"tool call without a function name: message {number}")
    arguments = parse_arguments(function.get("arguments"), f"{excerpt(function['name'], _SHOWN)} in message {number}")
    return LoggedCall(name=function["name"], arguments=arguments, id=_id(call.get("id")))


def parse_arguments(value: Any, place: str) -> dict[str, Any]:
    """Arguments of a call: an object, or one as JSON; none for null and an empty text."""
    if isinstance(value, str):
        try:
            value = from_json(value, allow_inf_nan=False) if value.strip() else {}
        except ValueError as error:
            reason = str(error).replace("line 1 ", "")
            raise ValueError(f"arguments are not JSON: {place}: {reason}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"arguments are not an object: {type(value).__name__} of {place}")
    return value


def _id(value: Any) -> str | None:
    return None if value in (None, "") else excerpt(value)


def parse_tools(value: Any) -> tuple[dict[str, Any], ...]:
    """Tools as a scenario has them, from `{"type": "function", "function": {…}}` or the functions alone, or from JSON.

    Raises `ValueError` for tools that are not a list of functions with a name, and for two of one name.
    """
    if isinstance(value, str):
        try:
            value = from_json(value, allow_inf_nan=False) if value.strip() else []
        except ValueError as error:
            raise ValueError(f"tools are not JSON: {str(error).replace('line 1 ', '')}") from error
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"tools are not a list: {type(value).__name__}")
    tools = tuple(_tool(tool, number) for number, tool in enumerate(value))
    names: set[str] = set()
    for tool in tools:
        if tool["name"] in names:
            raise ValueError(f"two tools of one name: {excerpt(tool['name'], _SHOWN)}")
        names.add(tool["name"])
    return tools


def _tool(tool: Any, number: int) -> dict[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError(f"tool without a name: tool {number}")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise ValueError(f"parameters are not an object: {type(parameters).__name__} of tool {number}")
    description = function.get("description")
    return {
        "name": function["name"],
        "description": description if isinstance(description, str) else "",
        "parameters": parameters,
    }


def reply_of(response: Any) -> Any:
    """Message of a chat completion: that of its first choice. Raises `ValueError` where there is none."""
    choices = response.get("choices") if isinstance(response, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, Mapping) or not isinstance(first.get("message"), Mapping):
        raise ValueError("no choice in the response: choices[0].message is missing")
    return first["message"]


def with_reply(messages: Any, replies: Sequence[Any]) -> list[Any]:
    """Messages of a request followed by those of its response."""
    if not isinstance(messages, list):
        raise ValueError(f"messages are not a list: {type(messages).__name__}")
    return [*messages, *replies]
