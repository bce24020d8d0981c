"""Calls that a message has as text in Python, and the tools that a system prompt lists, as ToolACE's data set has them.

    system     … a list of functions in JSON format that you can invoke: [{"name": "look_up", "parameters": {…}}]. …
    assistant  [look_up(order="7"), look_up(order="8")]
    tool       [{"name": "look_up", "results": "lost"}, {"name": "look_up", "results": "sent"}]

A text is a list of calls if it has this form from its beginning to its end, and if it names tools of the record or a
result follows. Names may have spaces. The arguments are parsed as literals of Python, and nothing is evaluated. If the
form cannot be read, or a name is not among the tools, the record is quarantined, because the call would otherwise be
learned as a text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt
from grpo.renderers.python_calls import literal_arguments
from grpo.scenarios.logged_chat import MAX_MESSAGES
from grpo.scenarios.readers.places import parsed
from grpo.strict_json import decode_at

_MOST_CHARACTERS = 100_000
"""Characters of a text with calls, and of the tools of a system prompt that are in Python."""
_MOST_LISTS = 64  # places of a system prompt at which a list of tools is looked for
_NAME = r"[^\W\d][^\[\](){}\"'=,\n]{0,199}"
_CALL = re.compile(rf"\s*({_NAME})\(")
_FORM = re.compile(rf"\s*\[\s*{_NAME}\(.*\)\s*\]\s*", re.DOTALL)
_LIST = re.compile(r"\[\s*\{\s*[\"']")
_RESULTS = ("results", "result", "response", "output", "content")
_FAULTS = (ValueError, SyntaxError, RecursionError, MemoryError)
_SHOWN = 80  # characters of a value in a reason


def listed_tools(text: Any) -> list[Any] | None:
    """Tools that a system prompt lists in JSON or as Python writes them. None if it has no such list."""
    if not isinstance(text, str):
        return None
    for number, match in enumerate(_LIST.finditer(text)):
        if number == _MOST_LISTS:
            return None
        value = _list_at(text, match.start())
        if isinstance(value, list) and value and all(map(_is_tool, value)):
            return value
    return None


def _list_at(text: str, start: int) -> Any:
    try:
        return decode_at(text, start)[0]
    except ValueError:
        pass
    end = closing_bracket(text[: start + _MOST_CHARACTERS], start + 1)
    return None if end is None else literal_value(text[start:end])


def literal_value(text: str) -> Any:
    """Value of a list or object as Python or JSON writes it. None for anything else, and for a very long text."""
    if len(text) > _MOST_CHARACTERS:
        return None
    try:
        call = ast.parse(f"f(value={text.strip()})", mode="eval").body
        return literal_arguments(call)["value"] if isinstance(call, ast.Call) and len(call.keywords) == 1 else None
    except _FAULTS:
        return None


def _is_tool(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("parameters"), dict)


def with_written_calls(messages: Any, tools: Any) -> Any:
    """Messages in OpenAI's format, in which texts that are calls have become calls. `tools` are those of the record.

    Raises `ValueError` if a text has the form of calls and cannot be read.
    """
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        return messages
    names = {*_names(tools)}
    rewritten: list[Any] = []
    pending: list[str] = []
    for number, message in enumerate(messages):
        following = messages[number + 1].get("role") if number + 1 < len(messages) else None
        if message.get("role") == "tool" and pending:
            results = _results(message, pending)
            rewritten += results
            pending = pending[len(results) :]
            continue
        calls = _calls(message, number, names, has_results=following == "tool")
        pending = [] if calls is None else [name for name, _ in calls]
        rewritten.append(message if calls is None else _called(message, calls))
    return rewritten


def _names(tools: Any) -> Iterator[str]:
    for tool in parsed(tools) if isinstance(parsed(tools), list) else ():
        tool = parsed(tool)
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(inner, Mapping) and isinstance(inner.get("name"), str):
            yield inner["name"]


def _called(message: Mapping[str, Any], calls: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    functions = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {**message, "content": None, "tool_calls": functions}


def _calls(
    message: Mapping[str, Any], number: int, names: set[str], *, has_results: bool
) -> list[tuple[str, dict[str, Any]]] | None:
    """Calls of a message that is a list of them. None for every other message."""
    text = message.get("content")
    if message.get("role") != "assistant" or message.get("tool_calls") or not isinstance(text, str):
        return None
    if not (names or has_results) or len(text) > _MOST_CHARACTERS or not _FORM.fullmatch(text):
        return None
    first = _CALL.match(text.strip()[1:])
    is_certain = has_results or (first is not None and first[1].strip() in names)
    try:
        calls = list(_parsed(text.strip()[1:-1]))
    except _FAULTS as error:
        if not is_certain:
            return None
        reason = excerpt(str(getattr(error, "msg", None) or error), _SHOWN)
        raise ValueError(
            f"calls in the text cannot be read: message {number}: {reason}. Write them as [name(key=value)] with "
            "values as in Python, or as tool_calls"
        ) from error
    if unknown := [name for name, _ in calls if names and name not in names]:
        raise ValueError(
            f"call of an unknown tool in a text: message {number} calls {excerpt(unknown[0], _SHOWN)}, and the record "
            "has no such tool. Correct the name, or add the tool"
        )
    return calls


def _parsed(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and arguments of calls that commas separate."""
    position = 0
    for _ in range(MAX_MESSAGES + 1):
        match = _CALL.match(text, position)
        end = None if match is None else closing_bracket(text, match.end())
        if match is None or end is None:
            raise ValueError(f"no call at {text[position:].strip()[:_SHOWN] or 'the end'}")
        call = ast.parse(f"f({text[match.end() : end]}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not a call")
        yield match[1].strip(), literal_arguments(call)
        rest = text[end:].lstrip()
        if not rest:
            return
        if not rest.startswith(","):
            raise ValueError(f"no comma before {rest[:_SHOWN]}")
        position = len(text) - len(rest) + 1
    raise ValueError(f"over {MAX_MESSAGES} calls")


def closing_bracket(text: str, position: int) -> int | None:
    """Position after the bracket that closes what was opened before a position, outside of texts in quotes."""
    depth, quote = 1, ""
    while position < len(text):
        character = text[position]
        if quote:
            if character == "\\":
                position += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if not depth:
                return position + 1
        position += 1
    return None


def _results(message: Mapping[str, Any], pending: Sequence[str]) -> list[Any]:
    """A message for the result of each call that waits. One message may have them all, in a list with their names."""
    values = parsed(message.get("content"))
    if not isinstance(values, list) or [_result_name(value) for value in values] != [*pending]:
        return [message]
    return [{**message, "content": _text(_result(value))} for value in values]


def _result_name(value: Any) -> str | None:
    is_result = isinstance(value, Mapping) and len(value) == 2 and any(key in value for key in _RESULTS)
    name = value.get("name") if is_result else None
    return name if isinstance(name, str) else None


def _result(value: Mapping[str, Any]) -> Any:
    return next(value[key] for key in _RESULTS if key in value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
