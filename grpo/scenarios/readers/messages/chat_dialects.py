"""Messages of the dialects of ShareGPT, and calls in Hermes' format, rewritten into OpenAI's messages.

    {"from": "human", "value": "Where is order 7?"}                    role user
    {"from": "function_call", "value": "{\\"name\\": …}"}                role assistant with a call, or a list of calls
    {"from": "observation", "value": "lost"}                           role tool, with results in the calls' order
    {"from": "gpt", "value": "<tool_call>{\\"name\\": …}</tool_call>"}   Hermes: role assistant with a call
    {"from": "tool", "value": "<tool_response>…</tool_response>"}      Hermes: role tool, one result for each element

Keys and tags that the settings name come first, then the usual names in FastChat, LLaMA-Factory, axolotl and Hermes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from grpo.config.chats import ChatSettings
from grpo.data_errors import excerpt
from grpo.messages import TOOL_CALL_OPEN
from grpo.renderers.reply_format import TAGGED_JSON
from grpo.renderers.tool_formats import JsonCalls, Marks
from grpo.scenarios.readers.files.places import value_at, without
from grpo.scenarios.readers.messages.api_dialects import split_parts
from grpo.scenarios.readers.messages.langchain_messages import is_serialized, openai_message
from grpo.scenarios.readers.messages.message_items import rewrite_items
from grpo.scenarios.readers.messages.speakers import CALLS, SPEAKERS, TOOLS, speaker_name
from grpo.scenarios.readers.messages.written_calls import closing_bracket, listed_tools, literal_value

_TAGS = {
    **SPEAKERS,
    **dict.fromkeys(CALLS, "call"),
    **dict.fromkeys(TOOLS, "tool"),
    "function": "function",
}
"""Common names of speakers, as in SPEAKERS. `function` is OpenAI's role, in which a result names its function."""
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from"), ("content", "value")
_WRITTEN = {
    TOOL_CALL_OPEN: TAGGED_JSON,
    **{
        opening: JsonCalls(Marks(opening=opening, between=None, closing=closing), name="name", arguments="arguments")
        for opening, closing in (("<TOOLCALL>", "</TOOLCALL>"), ("[TOOL_CALLS]", ""), ("<functioncall>", ""))
    },
}
"""Formats of calls in JSON that are written in a text, by their opening marks: of Hermes, Nemotron, Mistral, Glaive."""
_RESPONSE, _END_OF_RESPONSE = "<tool_response>", "</tool_response>"
_TOOLS, _END_OF_TOOLS = "<tools>", "</tools>"
_UNSEEN = ("private", "internal", "hidden", "deleted")
_RESULT_KEYS = {"name", "content", "tool_call_id"}
_SHOWN = 80  # characters of a value in a reason


def openai_messages(turns: Any, settings: ChatSettings) -> Any:
    """Messages in OpenAI's format. What is not a list of objects stays unchanged, so that the parser refuses it."""
    turns = _of_pairs(turns if "role" in settings.names else rewrite_items(turns), settings)
    if not isinstance(turns, list):
        return turns
    return [message for number, turn in enumerate(turns) for message in _messages(turn, number, settings)]


def _of_pairs(turns: Any, settings: ChatSettings) -> Any:
    """Messages of pairs of what the user and the agent say, as Gradio writes them: [["Hi.", "Hello."], …].

    If the first texts are names of both sides, the pairs are speakers with their texts: [["human", "Hi."], ["ai", …]].
    """
    if not isinstance(turns, list) or not turns or not all(_is_pair(pair) for pair in turns):
        return turns
    if {"user", "assistant"} <= {settings.tags.get(name) or _TAGS.get(speaker_name(name)) for name, _ in turns}:
        return [{"role": speaker, "content": text} for speaker, text in turns]
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for pair in turns for role, text in zip(roles, pair, strict=True) if text]


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(text, str | None) for text in value)


def tools_in_prompt(prompt: Any) -> list[Any] | None:
    """Tools in the system prompt, as Hermes and ToolACE write them. None if there are none.

    You may call functions. <tools> [{"type": "function", …}] </tools>
    Here is a list of functions that you can invoke: [{"name": "look_up", "parameters": {…}}]

    `prompt` is the text, or the messages of which it may be the first.
    """
    text = prompt
    if isinstance(prompt, list):
        first = prompt[0] if prompt and isinstance(prompt[0], Mapping) else {}
        text = first.get("content") if first.get("role") == "system" else None
    if not isinstance(text, str):
        return None
    start = text.rfind(_TOOLS) + len(_TOOLS)
    inside, closed, _ = text[start:].partition(_END_OF_TOOLS)
    if start < len(_TOOLS) or not closed or not inside.strip():
        return listed_tools(text)
    value = _json(inside)
    if value is None:
        value = [_json(line) for line in inside.splitlines() if line.strip()]
    tools = value if isinstance(value, list) else [value]
    return tools if tools and all(isinstance(tool, dict) for tool in tools) else listed_tools(inside)


def _messages(turn: Any, number: int, settings: ChatSettings) -> Iterator[Any]:
    if not isinstance(turn, Mapping):
        yield turn
        return
    message = dict(openai_message(turn) if is_serialized(turn) and "role" not in settings.names else turn)
    role = _take(message, (settings.names.get("role"), *_ROLE_KEYS))
    content = _take(message, (settings.names.get("content"), *_CONTENT_KEYS))
    calls = _take(message, (settings.names.get("tool_calls"), "tool_calls"))
    if role in (None, "") and "null" in settings.tags:
        role = "null"
    if role is None:
        keys = excerpt(", ".join(map(str, turn)), _SHOWN) or "no key"
        raise ValueError(f"no role: message {number} has {keys}. Name the key of the speaker in the source's names")
    meaning = _meaning(role, number, settings)
    if meaning == "ignore":
        return
    marks = (f"{excerpt(name, _SHOWN)} is true" for name, value in message.items() if value is True and _is_mark(name))
    if mark := "it is not public" if message.get("public") is False else next(marks, None):
        raise ValueError(f"the user does not see message {number}: {mark}. Leave such messages out")
    if calls not in (None, "", []):
        message["tool_calls"] = _parsed_calls(calls, number)
    if meaning == "call":
        yield {**message, "role": "assistant", "content": None, "tool_calls": _written_calls(content, number)}
    elif meaning == "tool" and isinstance(content, str) and _RESPONSE in content:
        yield from ({**message, "role": "tool", "content": result} for result in _results(content))
    elif meaning == "assistant" and _mark_in(content) is not None and calls in (None, "", []):
        yield {**message, "role": "assistant", **_tagged_calls(content, number)}
    else:
        yield from split_parts({**message, "role": meaning, "content": content})


def _is_mark(name: Any) -> bool:
    """True for the name of a mark of messages that the user does not see, such as `private` or `is_deleted`."""
    return str(name).lower().replace("_", "").removeprefix("is") in _UNSEEN


def _take(message: dict[str, Any], names: tuple[str | None, ...]) -> Any:
    """Remove the first of these keys or places that the message has, and return its value."""
    for name in names:
        if name is not None and (name in message or ("." in name and value_at(message, name) is not None)):
            value, others = value_at(message, name), without(message, name)
            message.clear()
            message.update(others)
            return value
    return None


def _meaning(role: Any, number: int, settings: ChatSettings) -> str:
    if isinstance(role, (str, bool)):
        meaning = settings.tags.get(str(role).lower() if isinstance(role, bool) else role) or _TAGS.get(
            speaker_name(role)
        )
        if meaning is not None:
            return meaning
    raise ValueError(
        f"unknown role: {excerpt(role or None, _SHOWN)} in message {number}. Known are user, assistant, system, "
        "tool and their common names. Name it in the source's tags"
    )


def _parsed_calls(calls: Any, number: int) -> Any:
    """Calls of a message: in OpenAI's form, or with `name` and `arguments` on one level, or as JSON in a text."""
    if isinstance(calls, str):
        calls = _json(calls)
        if calls is None:
            raise ValueError(f"tool_calls are not JSON: message {number}")
    if not isinstance(calls, list):
        return calls
    return [_openai_call(_json(call) if isinstance(call, str) else call) for call in calls]


def _openai_call(call: Any) -> Any:
    if not isinstance(call, Mapping) or "function" in call or "name" not in call:
        return call
    function = {key: value for key, value in call.items() if key not in ("id", "type", "index")}
    return {**{key: call[key] for key in ("id", "type", "index") if key in call}, "function": function}


def _written_calls(text: Any, number: int) -> list[Any]:
    """Calls of a message that is only a call: JSON of one or several calls, with or without Hermes' tags."""
    if _mark_in(text) is not None:
        return list(_tagged_calls(text, number)["tool_calls"])
    if isinstance(text, str):
        try:
            text = from_json(text, allow_inf_nan=False)
        except ValueError as error:
            reason = str(error).replace("line 1 ", "")
            raise ValueError(f"function call is not JSON: message {number}: {reason}") from error
    return [_openai_call(call) for call in (text if isinstance(text, list) else [text])]


def _mark_in(text: Any) -> str | None:
    """Mark of a call in a text, or None."""
    return next((mark for mark in _WRITTEN if isinstance(text, str) and mark in text), None)


def _tagged_calls(text: str, number: int) -> dict[str, Any]:
    """Content and calls of a text with `<tool_call>` or another mark. If prose only mentions it, it stays text."""
    mark = _mark_in(text) or TOOL_CALL_OPEN
    parsed = _WRITTEN[mark].parse(_with_json_calls(text, mark), ())
    if parsed.malformed is not None:
        raise ValueError(f"tool call in the text is malformed: message {number}: {parsed.malformed}")
    if not parsed.calls:
        return {"content": text, "tool_calls": None}
    calls = [{"function": {"name": call.name, "arguments": dict(call.arguments)}} for call in parsed.calls]
    return {"content": parsed.content.strip() or None, "tool_calls": calls}


def _with_json_calls(text: str, mark: str) -> str:
    """The text with JSON in the place of calls that are objects of Python, as Hermes' and Glaive's data sets have them.

    <tool_call> {'name': 'look_up', 'arguments': {'order': '7'}} </tool_call>
    """
    parts = text.split(mark)
    for number, part in enumerate(parts[1:], start=1):
        start = len(part) - len(part.lstrip())
        end = closing_bracket(part, start + 1) if part.startswith("{", start) else None
        value = literal_value(part[start:end]) if end is not None and _json(part[start:end]) is None else None
        if isinstance(value, dict) and "name" in value:
            parts[number] = f"{part[:start]}{_text(value)}{part[end:]}"
    return mark.join(parts)


def _results(text: str) -> Iterator[str]:
    """Results between Hermes' tags. If a result is `{"name", "content"}`, its content."""
    for part in text.split(_RESPONSE)[1:]:
        inside = part.partition(_END_OF_RESPONSE)[0].strip()
        value = _json(inside)
        if isinstance(value, dict) and "content" in value and value.keys() <= _RESULT_KEYS:
            inside = value["content"] if isinstance(value["content"], str) else _text(value["content"])
        yield inside


def _json(text: str) -> Any:
    """Value of a JSON text, or None if it is not JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return None


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
