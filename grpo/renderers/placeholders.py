"""Placeholders for texts in a rendered conversation.

A template is rendered once per shape of a conversation, and the texts are filled in afterwards. So a template never
reads what a user or a tool wrote, and rendering can be cached.

    shape     user ␣⸨0c⸩       one space, then a text
    rendered  <|user|>⸨0c⸩<|end|>      a template that trims
    filled    <|user|>hello<|end|>

White space at the ends of a text is part of the shape, because some templates trim it and others keep it. The date that
a template prints is a placeholder as well, so that cached text does not change at midnight.

A template reads the schemas of tools, because some write them in a form of their own. Their brackets are stand-ins
until the texts are filled in, so that no name or description of a tool is a slot or a control token.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any

from grpo.errors import PolicyError
from grpo.messages import Message, ToolCall

_QUOTES = "\"'"
"""Characters in each slot. Their rendering shows how the template escapes a text."""
_SLOT = re.compile(r"⸨(\w++)([^⸨⸩]*+)⸩|\\u2e28(\w+)(\\\"'|\"')\\u2e29")
_DATE = re.compile(r"⸨@([^⸨⸩]*)⸩")
DATE_MACRO = "{%- macro strftime_now(format) -%}⸨@{{ format }}⸩{%- endmacro -%}"
"""Statement in front of a template that makes it print a placeholder instead of the date."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "tool_plan")
"""Names of the reasoning of a message in chat templates. Cohere calls it a plan."""
_OPENING = "<[⸨⸩\uff1c\ufe64\uff3b\ufe47"
"""Brackets of control tokens and slots, and characters that some tokenizers read as such brackets (NFKC)."""
_STAND_INS = dict(zip(f"{_OPENING}\\", map(chr, range(0xFDD0, 0xFDD9)), strict=True))
"""Unicode's noncharacters, which no text has, for these brackets, and for a backslash that would spell one of them."""
_SPELLED = re.compile(r"\\(?=u2e2[89]|ufdd[0-8])")
_TO_STAND_INS = str.maketrans(
    {
        **{bracket: _STAND_INS[bracket] for bracket in _OPENING},
        **dict.fromkeys(_STAND_INS.values(), "\N{REPLACEMENT CHARACTER}"),
    }
)
_BRACKETS = {stand_in: bracket for bracket, stand_in in _STAND_INS.items()}
_STAND_IN = re.compile("([\ufdd0-\ufdd8]|\\\\ufdd[0-8])")
_LEAF = "\0"
_BRACKET = re.compile(f"[\0{re.escape(_OPENING)}\ufdd0-\ufdd8]|{_SPELLED.pattern}")
UNNAMED = "unknown"
"""Name of a call that could not be parsed, in templates that render no result without a call."""


@dataclass(frozen=True, slots=True)
class CallShape:
    """A tool call without its texts: JSON of its arguments, with a numbered leaf for each string."""

    arguments: str


@dataclass(frozen=True, slots=True)
class MessageShape:
    """A message without its texts."""

    role: str
    lead: str = ""
    """White space before the content."""
    filled: bool = True
    """The content has more than white space."""
    trail: str = ""
    calls: tuple[CallShape, ...] = ()
    reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot in rendered text."""

    start: int
    stop: int
    key: str
    """Index of the message, a letter for the part, and numbers: `2c` content, `2r` reasoning, `2n0` name of a call,
    `2a0_1` text of its arguments, `3t` name of the tool that gave the result."""
    escaping: str

    @property
    def message(self) -> int:
        """Index of the message."""
        match = re.match(r"\d+", self.key)
        assert match is not None
        return int(match[0])


def shape_of(message: Message) -> MessageShape:
    """Shape of a message with all its parts."""
    content = message.content
    core = content.strip()
    lead = content[: len(content) - len(content.lstrip())] if core else content
    return MessageShape(
        role=message.role,
        lead=lead,
        filled=bool(core),
        trail=content[len(content.rstrip()) :] if core else "",
        calls=tuple(CallShape(json.dumps(_skeleton(call.arguments, []))) for call in message.tool_calls),
        reasoning=bool(message.reasoning and message.reasoning.strip()),
    )


def texts_of(messages: Sequence[Message]) -> dict[str, str]:
    """Texts of a conversation by the keys of their slots."""
    texts: dict[str, str] = {}
    names, position = [UNNAMED], 0
    for index, message in enumerate(messages):
        if message.role != "tool":
            names, position = [call.name for call in message.tool_calls] or [UNNAMED], 0
        else:
            texts[f"{index}t"] = names[min(position, len(names) - 1)]
            position += 1
        if message.malformed:
            texts |= {f"{index}n0": UNNAMED, f"{index}a0_0": ""}
        texts[f"{index}c"] = message.content.strip()
        texts[f"{index}r"] = (message.reasoning or "").strip()
        for number, call in enumerate(message.tool_calls):
            texts[f"{index}n{number}"] = call.name
            leaves: list[str] = []
            _skeleton(call.arguments, leaves)
            texts |= {f"{index}a{number}_{leaf}": text for leaf, text in enumerate(leaves)}
    return texts


def template_messages(shapes: Sequence[MessageShape]) -> list[dict[str, Any]]:
    """Messages in the format of chat templates, with slots in place of texts.

    A result has the name of its call. Call ids have nine letters and digits, because Mistral's templates require that.
    """
    messages: list[dict[str, Any]] = []
    answered: list[str] = []
    position = 0
    for index, shape in enumerate(shapes):
        content = shape.lead + (_slot(f"{index}c") if shape.filled else "") + shape.trail
        message: dict[str, Any] = {"role": shape.role, "content": content}
        if shape.calls:
            message["tool_calls"] = [_call(call, index, number) for number, call in enumerate(shape.calls)]
            answered, position = [f"{index}n{number}" for number in range(len(shape.calls))], 0
        if shape.reasoning:
            text = _slot(f"{index}r")
            message |= dict.fromkeys(REASONING_FIELDS, text)
        if shape.role == "tool" and answered:
            name = answered[min(position, len(answered) - 1)]
            message |= {"name": _slot(f"{index}t"), "tool_call_id": _call_id(name)}
            position += 1
        messages.append(message)
    return messages


def slots_in(rendered: str) -> Iterator[Slot]:
    """Slots of rendered text, in order."""
    for match in _SLOT.finditer(rendered):
        ascii_json = match[1] is None
        yield Slot(
            start=match.start(),
            stop=match.end(),
            key=match[3] if ascii_json else match[1],
            escaping="ascii" if ascii_json else match[2],
        )


def with_stand_ins(value: Any) -> Any:
    """JSON of a tool with stand-ins for brackets in its names and texts."""
    if isinstance(value, str):
        return _SPELLED.sub(_STAND_INS["\\"], value.translate(_TO_STAND_INS))
    if isinstance(value, Mapping):
        return {with_stand_ins(key): with_stand_ins(part) for key, part in value.items()}
    return [with_stand_ins(part) for part in value] if isinstance(value, (list, tuple)) else value


def _own_pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Pieces of a template's own text. Brackets of tools do not come from the template."""
    for number, part in enumerate(_STAND_IN.split(text)):
        if part:
            yield (_BRACKETS.get(part) or _BRACKETS[chr(int(part[2:], 16))], False) if number % 2 else (part, True)


def fill(rendered: str, texts: Mapping[str, str]) -> list[tuple[str, bool]]:
    """Pieces of a rendered text, each with True if it comes from the template, or False if it fills a slot.

    Raises `PolicyError` if the template changes a text in a way that is not known.
    """
    pieces: list[tuple[str, bool]] = []
    end, now = 0, datetime.now()
    for slot in slots_in(rendered):
        if slot.key not in texts:
            raise PolicyError(
                "the chat template changes letters inside of texts, so that the tokens would differ from the "
                "texts. Set policy.chat_template to one that prints texts as they are"
            )
        pieces += [*_own_pieces(dated(rendered[end : slot.start], now)), (escape(texts[slot.key], slot), False)]
        end = slot.stop
    return [*pieces, *_own_pieces(dated(rendered[end:], now))]


def dated(text: str, day: datetime) -> str:
    """Text of a template with the date in its placeholders."""
    return _DATE.sub(lambda slot: day.strftime(slot[1]), text)


def common_prefix(first: str, second: str) -> str:
    """Longest text that both begin with."""
    pairs = zip(first, second, strict=False)
    return first[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))]


def escape(text: str, slot: Slot) -> str:
    """Escape a text like the template escaped the quotes of the slot. HTML escapes are allowed only in names."""
    escaping = slot.escaping
    if escaping == _QUOTES:
        return text
    if escaping == "\\\"'":
        return json.dumps(text, ensure_ascii=False)[1:-1]
    if escaping == "ascii":
        return json.dumps(text)[1:-1]
    if escaping == "\"\\'":
        for character, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
            text = text.replace(character, escaped)
        return text
    if escaping == "&#34;&#39;" and "n" in slot.key:
        return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    raise PolicyError(
        f"the chat template writes the quotes {_QUOTES} of a text as {escaping}, which is neither JSON nor the "
        "text itself. Set policy.chat_template to one that prints texts as they are, or by tojson"
    )


def _slot(key: str) -> str:
    return f"⸨{key}{_QUOTES}⸩"


def _call(shape: CallShape, index: int, number: int) -> dict[str, Any]:
    name = f"{index}n{number}"
    arguments = _with_slots(json.loads(shape.arguments), f"{index}a{number}_")
    return {"id": _call_id(name), "type": "function", "function": {"name": _slot(name), "arguments": arguments}}


def _call_id(name: str) -> str:
    index, _, number = name.partition("n")
    return f"call{int(index):03d}{int(number):02d}"


def _skeleton(value: Any, leaves: list[str]) -> Any:
    """Value with a numbered leaf in place of each text. The texts are appended to `leaves`."""
    if isinstance(value, str):
        leaves.append(value)
        return f"{_LEAF}{len(leaves) - 1}"
    if isinstance(value, Mapping):
        return {_skeleton_key(str(key), leaves): _skeleton(part, leaves) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_skeleton(part, leaves) for part in value]
    return value


def _skeleton_key(key: str, leaves: list[str]) -> str:
    """Key as it is, because templates sort by it, or a leaf if a bracket in it may forge a control token."""
    return str(_skeleton(key, leaves)) if _BRACKET.search(key) else key


def _with_slots(value: Any, prefix: str) -> Any:
    if isinstance(value, str):
        return _slot(prefix + value[1:])
    if isinstance(value, dict):
        return {
            _with_slots(key, prefix) if key.startswith(_LEAF) else key: _with_slots(part, prefix)
            for key, part in value.items()
        }
    return [_with_slots(part, prefix) for part in value] if isinstance(value, list) else value


def history_shape(
    message: Message, *, with_content: bool, with_reasoning: bool, calls: int, unparsed_as_call: bool
) -> MessageShape:
    """Shape of a message that was already read or generated, so that only its end matters.

    White space at its ends is dropped, and each call has one argument. `with_content` keeps the content of a turn with
    calls, and `with_reasoning` its reasoning. `calls` is the largest number that the template renders. With
    `unparsed_as_call` a malformed call is rendered as a call.
    """
    if message.role != "assistant":
        return MessageShape(role=message.role, filled=bool(message.content.strip()))
    names = message.tool_calls or ((ToolCall(name=UNNAMED, arguments={}),) if message.malformed else ())
    if message.malformed and not message.tool_calls and not unparsed_as_call:
        names = ()
    shapes = tuple(CallShape(json.dumps({"value": f"{_LEAF}0"})) for _ in names[:calls])
    return MessageShape(
        role="assistant",
        filled=not shapes or (with_content and bool(message.content.strip())),
        calls=shapes,
        reasoning=with_reasoning and bool(message.reasoning and message.reasoning.strip()),
    )
