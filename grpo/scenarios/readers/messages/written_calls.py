"""Calls that a message has as text in Python or as an action, and tools that a system prompt lists.

    system     … a list of functions in JSON format that you can invoke: [{"name": "look_up", "parameters": {…}}]. …
    assistant  [look_up(order="7"), look_up(order="8")]
    tool       [{"name": "look_up", "results": "lost"}, {"name": "look_up", "results": "sent"}]      ToolACE

    assistant  Thought: I look.
               Action: look_up
               Action Input: {"order": "7"}                                                       ToolBench, ReAct
    function   lost
    assistant  Action: Finish
               Action Input: {"return_type": "give_answer", "final_answer": "It is lost."}

A text is calls if it has one of these forms from its beginning to its end, and if it names tools of the record or a
result follows. Names may have spaces. The arguments are parsed as literals of Python, and nothing is evaluated. If the
form cannot be read, or a name is not among the tools, the record is quarantined, because the call would otherwise be
learned as a text. The action Finish has the reply. If it has none, the agent gave up, and the turn has no reference.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.data_errors import excerpt
from grpo.renderers.python_calls import literal_arguments
from grpo.scenarios.logged_chat import MAX_MESSAGES
from grpo.scenarios.readers.files.places import parsed
from grpo.strict_json import decode, decode_at

_MOST_CHARACTERS = 100_000
"""Characters of a text with calls, and of the tools of a system prompt that are in Python."""
_MOST_PROMPT = 400_000  # characters of a system prompt that are searched for a list of tools
_MOST_LISTS = 16  # places of a system prompt at which a list of tools is looked for
_NAME = r"[^\W\d][^\[\](){}\"'=,\n]{0,199}"
_CALL = re.compile(rf"\s*(?P<name>{_NAME})\(")
_FORM = re.compile(rf"\s*\[\s*(?P<name>{_NAME})\(.*\)\s*\]\s*", re.DOTALL)
_THOUGHT, _ACTION, _INPUT = "Thought:", "\nAction:", "\nAction Input:"
_FINISH, _ANSWER = "Finish", "final_answer"
_ANSWERS = ("tool", "function")
"""Roles of a result."""
_LIST = re.compile(r"\[\s*\{\s*[\"']")
_RESULTS = ("results", "result", "response", "output", "content")
_FAULTS = (ValueError, SyntaxError, RecursionError, MemoryError)
_SHOWN = 80  # characters of a value in a reason


def listed_tools(text: Any) -> list[Any] | None:
    """Tools that a system prompt lists in JSON or as Python writes them. None if it has no such list."""
    if not isinstance(text, str):
        return None
    text = text[:_MOST_PROMPT]
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
    """Messages in OpenAI's format, in which texts that are calls have become calls. `tools` are the record's tools.

    Raises `ValueError` if a text has the form of calls and cannot be read.
    """
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        return messages
    names = frozenset(_names(tools))
    rewritten: list[Any] = []
    pending: list[str] = []
    has_calls = False
    for number, message in enumerate(messages):
        following = messages[number + 1].get("role") if number + 1 < len(messages) else None
        if message.get("role") in _ANSWERS and pending:
            results = _results(message, pending)
            rewritten += results
            pending = pending[len(results) :]
            continue
        is_known = has_calls or following in _ANSWERS
        written = _written(message, number, names, has_results=following in _ANSWERS) if names or is_known else None
        pending = [] if written is None else [name for name, _ in written.calls]
        has_calls = has_calls or bool(pending)
        rewritten.append(message if written is None else written.message(message))
    return rewritten


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Calls of a text, and the thought before an action. An action has one call."""

    calls: Sequence[tuple[str, dict[str, Any]]]
    thought: str | None = None

    def message(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The message with calls, or with the reply of the last action."""
        message = {**given, "content": None, **({"reasoning": self.thought} if self.thought else {})}
        name, arguments = self.calls[0]
        if self.thought is not None and name == _FINISH:
            return {**message, "content": arguments[_ANSWER]} if arguments.get(_ANSWER) else {**message, "weight": 0}
        return {**message, "tool_calls": [{"function": {"name": name, "arguments": args}} for name, args in self.calls]}


def _names(tools: Any) -> Iterator[str]:
    for tool in parsed(tools) if isinstance(parsed(tools), list) else ():
        tool = parsed(tool)
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(inner, Mapping) and isinstance(inner.get("name"), str):
            yield inner["name"]


def _written(message: Mapping[str, Any], number: int, names: frozenset[str], *, has_results: bool) -> _Written | None:
    """Calls of a message that is nothing but calls. None for every other message."""
    text = message.get("content")
    if message.get("role") != "assistant" or message.get("tool_calls") or not isinstance(text, str):
        return None
    if len(text) > _MOST_CHARACTERS:
        return None
    action = _action(text)
    listed = _FORM.fullmatch(text) if action is None else None
    if action is None and listed is None:
        return None
    name = listed["name"].strip() if listed is not None else action[1] if action is not None else ""
    known = names | {_FINISH} if action is not None else names
    try:
        if action is not None:
            written = _Written(calls=[(name, _inputs(action[2]))], thought=action[0])
        else:
            written = _Written(calls=list(_parsed(text.strip()[1:-1])))
    except _FAULTS as error:
        if not has_results and name not in known:
            return None
        reason = excerpt(str(getattr(error, "msg", None) or error), _SHOWN)
        raise ValueError(
            f"calls in the text cannot be read: message {number}: {reason}. Write them as [name(key=value)] with "
            "values as in Python, as an Action with an Action Input in JSON, or as tool_calls"
        ) from error
    if unknown := [name for name, _ in written.calls if names and name not in known]:
        raise ValueError(
            f"call of an unknown tool in a text: message {number} calls {excerpt(unknown[0], _SHOWN)}, and the record "
            "has no such tool. Correct the name, or add the tool"
        )
    is_finish = action is not None and name == _FINISH
    return written if names or has_results or is_finish else None


def _action(text: str) -> tuple[str, str, str] | None:
    """Thought, name and input of an action. None for every other text."""
    before, mark, rest = f"\n{text.strip()}".rpartition(_ACTION)
    name, has_input, inputs = rest.partition(_INPUT)
    thought, name = before.strip(), name.strip()
    if not mark or not has_input or not name or "\n" in name or (thought and not thought.startswith(_THOUGHT)):
        return None
    return thought.removeprefix(_THOUGHT).strip(), name, inputs


def _inputs(text: str) -> dict[str, Any]:
    arguments = decode(text) if text.strip() else {}
    if not isinstance(arguments, dict):
        raise ValueError(f"Action Input is not an object: {type(arguments).__name__}")
    return arguments


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
        yield match["name"].strip(), literal_arguments(call)
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
