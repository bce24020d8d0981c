"""Messages and tools in the format of OpenAI's chat completions.

    {"role": "assistant", "content": null, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{\\"order\\": \\"7\\"}"}}]}
    {"role": "tool", "tool_call_id": "call_1", "content": "lost"}

Roles are system, developer, user, assistant, tool, and function, which answers a `function_call`. Content is a text,
null, or a list of text parts, which are joined with nothing between them, like in the server. A picture, sound or file
raises `ValueError`. If a message has no content, its refusal is its text. Arguments are JSON in a text, or an object.
`grpo.scenarios.readers.messages.openai_fields` lists for every field if it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt
from grpo.messages import Role
from grpo.scenarios.logged_chat import MAX_MESSAGES, LoggedCall, LoggedMessage
from grpo.scenarios.readers.files.json_cells import cell_value
from grpo.scenarios.readers.messages.api_dialects import rewrite_tools
from grpo.scenarios.readers.messages.openai_fields import (
    CALL,
    CALL_FUNCTION,
    CHOICE,
    MESSAGE,
    RESPONSE,
    TEXT_PART,
    TOOL,
    TOOL_FUNCTION,
    is_mark,
    left_out,
)
from grpo.scenarios.tool_schemas import declared_parameters

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of the parts of a text, and for each the field that holds the text."""
_REASONING = ("reasoning_content", "reasoning", "thinking", "tool_plan")
"""Spellings of the reasoning before a reply: of DeepSeek and vLLM, of OpenRouter, of Ollama, and of Cohere."""
_CUT_OFF = ("length", "content_filter")
"""Finish reasons of a reply that was cut off."""
_SHOWN = 80  # characters of a value in a reason


def parse_messages(value: Any) -> tuple[LoggedMessage, ...]:
    """Parse a list of messages. Raises `ValueError` with the number and fault of the first one that cannot be read."""
    if isinstance(value, str):
        raise ValueError("messages are not a list: str. Write the turns of the text as a list of messages with roles")
    if not isinstance(value, list):
        raise ValueError(f"messages are not a list: {type(value).__name__}")
    if len(value) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: {len(value)} messages, at most {MAX_MESSAGES}")
    return tuple(parse_message(message, number) for number, message in enumerate(value))


def parse_message(message: Any, number: int) -> LoggedMessage:
    """Parse one message. `number` is its place in the chat."""
    if not isinstance(message, Mapping):
        raise ValueError(f"message is not an object: message {number} is {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ValueError(f"unknown role: {excerpt(role, _SHOWN)} in message {number}. Known are {', '.join(_ROLES)}")
    fields = {field: value for field, value in message.items() if not is_mark(field, value)}
    ignored = list(left_out(MESSAGE, fields, "message", f"message {number}"))
    calls = _calls(message, number, ignored)
    if calls and role != "assistant":
        raise ValueError(f"tool call of another role: {role} in message {number}. Only the assistant calls tools")
    name = _id(message.get("name"))
    return LoggedMessage(
        role=_ROLES[role],
        content=_content(message, number, ignored),
        tool_calls=calls,
        answers=_answered(role, message, name),
        answers_tool=_id(message.get("tool_name")) or name if role == "tool" else None,
        name=None if _ROLES[role] == "tool" else name,
        weight=_weight(message, number),
        reasoning=_reasoning(message, number),
        ignored=tuple(ignored),
    )


def _answered(role: str, message: Mapping[str, Any], name: str | None) -> str | None:
    """Id of the call that a result answers. Results of a `function_call` name the function instead."""
    if role == "function":
        return None if name is None else _function_id(name)
    return _id(message.get("tool_call_id")) if role == "tool" else None


def _function_id(name: str) -> str:
    return f"function {name}"


def _weight(message: Mapping[str, Any], number: int) -> int:
    """1, or 0 for a turn that must not be learned: its `weight` is 0, or one of its marks is false."""
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise ValueError(f"weight is not 0 or 1: {excerpt(weight, _SHOWN)} in message {number}")
    marks = [value for field, value in message.items() if is_mark(field, value)]
    return 1 if weight != 0 and all(marks) else 0


def _reasoning(message: Mapping[str, Any], number: int) -> str | None:
    """Reasoning before the reply, in any spelling."""
    for field in _REASONING:
        if value := message.get(field):
            if not isinstance(value, str):
                raise ValueError(f"{field} is not a text: {type(value).__name__} in message {number}")
            return value
    return None


def _content(message: Mapping[str, Any], number: int, ignored: list[str]) -> str:
    text, refusal = _text(message.get("content"), number, ignored), message.get("refusal")
    if refusal in (None, ""):
        return text
    if not isinstance(refusal, str):
        raise ValueError(f"refusal is not a text: {type(refusal).__name__} in message {number}")
    if text.strip():
        raise ValueError(f"content and a refusal in one message: message {number} has two texts")
    return refusal


def _text(content: Any, number: int, ignored: list[str]) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ValueError(f"content is not text: {type(content).__name__} in message {number}")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        field = _TEXT_PARTS.get(kind) if isinstance(part, Mapping) and isinstance(kind, str) else None
        if isinstance(part, str):
            texts.append(part)
        elif field is not None and isinstance(part.get(field), str):
            texts.append(part[field])
            ignored += left_out(TEXT_PART, part, "part", f"message {number}")
        else:
            raise ValueError(f"content is not text: part {excerpt(kind, _SHOWN)} in message {number}")
    return "".join(texts)


def _calls(message: Mapping[str, Any], number: int, ignored: list[str]) -> tuple[LoggedCall, ...]:
    calls, legacy = message.get("tool_calls") or (), message.get("function_call")
    if not isinstance(calls, (list, tuple)):
        raise ValueError(f"tool_calls are not a list: {type(calls).__name__} in message {number}")
    if legacy in (None, "", {}):
        return tuple(_call(call, number, ignored) for call in calls)
    if calls:
        raise ValueError(f"tool_calls and function_call in one message: message {number}. Keep one of them")
    call = _call({"function": legacy}, number, ignored)
    return (LoggedCall(name=call.name, arguments=call.arguments, id=_function_id(call.name)),)


def _call(call: Any, number: int, ignored: list[str]) -> LoggedCall:
    if isinstance(call, Mapping):
        ignored += left_out(CALL, call, "tool_call", f"message {number}")
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError(f"tool call without a function name: message {number}")
    ignored += left_out(CALL_FUNCTION, function, "function", f"message {number}")
    arguments = parse_arguments(function.get("arguments"), f"{excerpt(function['name'], _SHOWN)} in message {number}")
    return LoggedCall(name=function["name"], arguments=arguments, id=_id(call.get("id")))


def parse_arguments(value: Any, place: str) -> dict[str, Any]:
    """Arguments of a call: an object, or an object as JSON. Null and an empty text mean no arguments."""
    if isinstance(value, str):
        try:
            value = cell_value(value, "arguments are") if value.strip() else {}
        except ValueError as error:
            raise ValueError(f"{error}, in the arguments of {place}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"arguments are not an object: {type(value).__name__} of {place}")
    return value


def _id(value: Any) -> str | None:
    return None if value in (None, "") else excerpt(value)


def parse_tools(value: Any, ignored: list[str] | None = None) -> tuple[dict[str, Any], ...]:
    """Tools of a scenario, from `{"type": "function", "function": {…}}`, from bare functions, or from JSON of either.

    Fields that are not read are appended to `ignored`. Raises `ValueError` if the tools are not a list of functions
    with a name, or if two have the same name.
    """
    if isinstance(value, str):
        value = cell_value(value, "tools are") if value.strip() else []
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"tools are not a list: {type(value).__name__}")
    tools = tuple(
        _tool(tool, number, [] if ignored is None else ignored) for number, tool in enumerate(rewrite_tools(value))
    )
    names: set[str] = set()
    for tool in tools:
        if tool["name"] in names:
            raise ValueError(f"two tools of one name: {excerpt(tool['name'], _SHOWN)}")
        names.add(tool["name"])
    return tools


def _tool(tool: Any, number: int, ignored: list[str]) -> dict[str, Any]:
    if isinstance(tool, str):
        tool = parse_arguments(tool, f"tool {number}")
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    kind = tool.get("type", "function") if isinstance(tool, Mapping) else "function"
    if isinstance(tool, Mapping):
        ignored += left_out(TOOL, tool, "tool", f"tool {number}")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        of_the_api = f" of type {excerpt(kind, _SHOWN)}, which the API runs itself" if kind != "function" else ""
        raise ValueError(f"tool without a name: tool {number}{of_the_api}")
    if kind != "function" and function is tool and not function.get("parameters"):
        raise ValueError(f"tool {number} is of type {excerpt(kind, _SHOWN)}, which the API runs itself")
    if function is not tool:
        ignored += left_out(TOOL_FUNCTION, function, "tool.function", f"tool {number}")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise ValueError(f"parameters are not an object: {type(parameters).__name__} of tool {number}")
    parameters = declared_parameters(parameters)
    description = function.get("description")
    return {
        "name": function["name"],
        "description": description if isinstance(description, str) else "",
        "parameters": parameters,
    }


def reply_of(response: Any, ignored: list[str]) -> dict[str, Any]:
    """Message of a chat completion: the message of its first choice.

    If the reply was cut off, it gets weight 0. What is not read is appended to `ignored`. Raises `ValueError` if the
    message is missing.
    """
    choices = response.get("choices") if isinstance(response, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, Mapping) or not isinstance(first.get("message"), Mapping):
        raise ValueError("no choice in the response: choices[0].message is missing")
    ignored += left_out(RESPONSE, response, "response", "")
    ignored += left_out(CHOICE, first, "choice", "")
    if isinstance(choices, list) and len(choices) > 1:
        ignored.append("response.choices: further replies, of which the first is read")
    message = dict(first["message"])
    if first.get("finish_reason") in _CUT_OFF:
        ignored.append(f"choice.message: a reply that was cut off ({first['finish_reason']}) is not a reference")
        message["weight"] = 0
    return message


def with_reply(messages: Any, replies: Sequence[Any]) -> list[Any]:
    """Messages of a request, followed by the messages of its response."""
    if not isinstance(messages, list):
        raise ValueError(f"messages are not a list: {type(messages).__name__}")
    return [*messages, *replies]
