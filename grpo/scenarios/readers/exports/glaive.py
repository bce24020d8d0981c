"""Chats of Glaive's data set of function calls: one text with the names of the speakers.

    system  SYSTEM: You have access to the following functions. Use them if required - {"name": "look_up", …}
    chat    USER: Where is order 7?

            ASSISTANT: <functioncall> {"name": "look_up", "arguments": '{"order": "7"}'} <|endoftext|>

            FUNCTION RESPONSE: {"state": "lost"}

            ASSISTANT: It is lost. <|endoftext|>

Other data sets use the same names, also with two line ends between turns. A text with any
other speaker is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from grpo.data_errors import try_call
from grpo.strict_json import decode_at

_SPEAKER = re.compile(r"(?:\A\s*|\n[^\S\n]*)(USER|ASSISTANT|FUNCTION RESPONSE):[^\S\n]?")
_ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_SYSTEM = "SYSTEM:"
_END = "<|endoftext|>"
_MOST_TOOLS = 200


def is_glaive(data: Mapping[str, Any]) -> bool:
    """True for a chat of the data set. It begins with the user."""
    chat = data.get("chat")
    return isinstance(chat, str) and isinstance(data.get("system"), str) and chat.lstrip().startswith("USER:")


def read_glaive(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The record with messages in OpenAI's format. Calls stay in their text, which `chat_dialects` reads."""
    chat, system = data["chat"], data["system"].strip().removeprefix(_SYSTEM).strip()
    speakers = list(_SPEAKER.finditer(chat))
    ends = [match.start() for match in speakers[1:]] + [len(chat)]
    messages = [
        {"role": _ROLES[match[1]], "content": chat[match.end() : end].replace(_END, "").strip()}
        for match, end in zip(speakers, ends, strict=True)
    ]
    others = {key: value for key, value in data.items() if key not in ("chat", "system")}
    tools = _tools(system)
    return {**others, "system": system, "messages": messages, **({"tools": tools} if tools else {})}, []


def _tools(system: str) -> list[Any]:
    """Objects of functions that follow one another in the system text."""
    tools: list[Any] = []
    position = system.find("{")
    while position >= 0 and len(tools) < _MOST_TOOLS:
        value = try_call(partial(decode_at, system, position))
        if isinstance(value, Exception) or not isinstance(value[0].get("name"), str):
            return tools
        tools.append(value[0])
        rest = system[value[1] :].lstrip()
        position = len(system) - len(rest) if rest.startswith("{") else -1
    return tools
