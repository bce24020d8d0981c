"""Parsing of a reply into reasoning, content and tool calls, in the format of a chat template.

The format is derived from turns that the template renders with known texts. A parser is accepted if it reads back what
the template renders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo.messages import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Message, Tool, ToolCall
from grpo.renderers.call_layout import EXAMPLE_NAME, layout_of
from grpo.renderers.channels import parse_channels
from grpo.renderers.placeholders import common_prefix
from grpo.renderers.python_calls import PythonCalls
from grpo.renderers.tool_formats import (
    JsonCalls,
    Marks,
    NamedCalls,
    ParsedCalls,
    TaggedCalls,
    ToolFormat,
)
from grpo.renderers.unquoted_calls import UnquotedCalls

_NAME, _KEY, _VALUE, _SECOND, _NEXT = EXAMPLE_NAME, "qzkey", "qzvalue", "qzsecond", "qznext"
_NUMBER = 7654
_THINK = ("<think>", "</think>")
_DECODER = json.JSONDecoder()
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")

TAGGED_JSON = JsonCalls(
    Marks(opening=TOOL_CALL_OPEN, between=None, closing=TOOL_CALL_CLOSE), name="name", arguments="arguments"
)
Render = Callable[[Message], str | None]
"""Function that renders a reply as the policy would generate it, without its end; None if the template fails."""

EXAMPLE = Tool(
    name=_NAME,
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "flag": {"type": "boolean"},
            "items": {"type": "array"},
            "record": {"type": "object"},
        },
    },
)


@dataclass(slots=True, kw_only=True)
class Progress:
    """Position up to which an unfinished reply was read for its settled content."""

    start: int | None = None
    """Position at which the content begins; None while it is unknown."""
    searched: int = 0
    """Position before which no call begins. While `start` is None, position before which no reasoning ends."""
    has_none: bool = False
    """The text before the end of reasoning has a call, so the reply is only read when it is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """Format of replies: marks of reasoning, texts around the content, and the format of calls."""

    reasoning: tuple[str, str] | None
    """Marks before and after reasoning."""
    around: tuple[str, str]
    """Texts before and after the content of a reply."""
    calls: ToolFormat | None
    opening: str = ""
    """Beginning of a turn in a prompt. If a prompt leaves it out, the policy generates it."""
    header: str = ""
    """Text between reasoning and the rest, if they are separate messages."""
    channels: bool = False
    """Reasoning, calls and content are messages with a channel and a recipient, as in harmony."""

    def parse(self, text: str, tools: Sequence[Tool] = (), *, begun: bool = False) -> Message:
        """Parse a reply. `begun` is True if the prompt has opened its reasoning.

        Calls in JSON between <tool_call> tags are parsed in every family, because environments describe this form.

        If a call cannot be parsed, its text stays in the content and `malformed` has the reason. The others are parsed.
        """
        if self.channels:
            message = parse_channels(text)
            return message if message.tool_calls or message.malformed else replace(
                _parse_calls(message.content, (TAGGED_JSON,), tools), reasoning=message.reasoning
            )  # fmt: skip
        reasoning, rest = self._split(text.lstrip().removeprefix(self.opening), begun=begun)
        formats = (TAGGED_JSON,) if self.calls is None else (self.calls, TAGGED_JSON)
        message = _parse_calls(rest, formats, tools)
        unparsed = message.malformed and not message.tool_calls
        content = message.content if unparsed else self._unwrap(message.content)
        return replace(message, content=content, reasoning=reasoning)

    def parse_content(self, text: str, *, begun: bool = False) -> Message:
        """Parse a reply, but keep any calls as content."""
        if self.channels:
            message = parse_channels(text)
            return replace(message, content=text.strip(), tool_calls=()) if message.tool_calls else message
        reasoning, rest = self._split(text.lstrip().removeprefix(self.opening), begun=begun)
        return Message(role="assistant", content=self._unwrap(rest), reasoning=reasoning)

    def settled_content(self, text: str, progress: Progress | None = None) -> str:
        """Beginning of an unfinished reply's content that no further token can change.

        Text that may become reasoning, a call, or a text around the content is held back, and so is white space at the
        end. If the family reasons, no content is settled before the reasoning ends. If it has channels, none is settled
        before the reply ends. Pass the same `progress` for each longer text of a reply, so that no text is searched
        twice.
        """
        progress = Progress() if progress is None else progress
        text = text.rstrip("\ufffd").lstrip()
        if progress.start is None:
            self._find_content(text, progress)
        start = progress.start
        if start is None:
            return ""
        formats = (TAGGED_JSON,) if self.calls is None else (self.calls, TAGGED_JSON)
        progress.searched = min(form.call_start(text, start, progress.searched) for form in formats)
        text = text[start : progress.searched].strip()
        before, after = self.around
        if before.startswith(text):
            return ""
        text = text.removeprefix(before).lstrip()
        held = next((size for size in range(len(after), 0, -1) if text.endswith(after[:size])), 0)
        return text[: len(text) - held].rstrip()

    def _find_content(self, text: str, progress: Progress) -> None:
        """Set the position at which an unfinished reply's content begins, if its reasoning has ended."""
        if self.channels or progress.has_none or self.opening.startswith(text):
            return
        begun = len(self.opening) if text.startswith(self.opening) else 0
        if self.reasoning is None:
            progress.start = progress.searched = begun
            return
        opening, closing = self.reasoning
        end = text.find(closing, max(begun, progress.searched))
        if end < 0:
            progress.searched = max(0, len(text) - len(closing))
            return
        progress.searched = end
        after = text[end + len(closing) :].lstrip()
        if self.header.startswith(after):
            return
        if not text.startswith(opening, begun) and self._calls_in(text[begun:end]):
            progress.has_none = True
            return
        progress.start = progress.searched = len(text) - len(after.removeprefix(self.header))

    def _split(self, text: str, *, begun: bool) -> tuple[str | None, str]:
        """Split a reply into reasoning and the rest. If the reasoning does not end, the rest is empty.

        If a reply ends reasoning, then either it began the reasoning itself or the prompt did. Some prompts do so only
        after a tool's result.
        """
        if self.reasoning is None:
            return None, text
        opening, closing = self.reasoning
        before, closed, after = text.partition(closing)
        if not begun and not text.lstrip().startswith(opening) and (not closed or self._calls_in(before)):
            return None, text
        after = after.lstrip().removeprefix(self.header)
        return before.strip().removeprefix(opening).strip() or None, after

    def _calls_in(self, text: str) -> bool:
        """True if a call begins in a text. In some families the mark that ends reasoning also separates calls."""
        return self.calls is not None and self.calls.call_start(text) < len(text)

    def _unwrap(self, content: str) -> str:
        before, after = self.around
        return content.strip().removeprefix(before).removesuffix(after).strip()


def _parse_calls(text: str, formats: Sequence[ToolFormat], tools: Sequence[Tool]) -> Message:
    """Message of a reply without reasoning, parsed by the first format that fits.

    A format with only well-formed calls comes first, then one with some calls, then one with a malformed call. If a
    reply has malformed and well-formed calls, the malformed ones stay in the content, with the reason of the first.
    """
    parsed = [tool_format.parse(text, tools) for tool_format in formats]
    nothing = ParsedCalls(content=text)
    chosen = (
        next((found for found in parsed if found.calls and found.malformed is None), None)
        or next((found for found in parsed if found.calls), None)
        or next((found for found in parsed if found.malformed is not None), nothing)
    )
    malformed = None if chosen.malformed is None else f"not a tool call: {chosen.malformed}"
    return Message(role="assistant", content=chosen.content.strip(), tool_calls=chosen.calls, malformed=malformed)


HERMES = ReplyFormat(reasoning=None, around=("", ""), calls=TAGGED_JSON)
"""Format of replies in which a call is JSON between tags."""


def read_format(render: Render, prompt: str) -> ReplyFormat:
    """Format of a template's replies. `prompt` is the text that begins a turn in a prompt, and may open reasoning."""
    plain = render(Message(role="assistant", content=_VALUE)) or _VALUE
    lead, _, trail = plain.partition(_VALUE)
    reasoned = render(Message(role="assistant", content=_VALUE, reasoning=_SECOND))
    only_before_calls = reasoned is None or _SECOND not in reasoned
    if only_before_calls:
        call = ToolCall(name=_NAME, arguments={_KEY: _VALUE})
        reasoned = render(Message(role="assistant", content="", reasoning=_SECOND, tool_calls=(call,)))
    reasoning = _reasoning_marks(prompt, reasoned, lead)
    if reasoning is not None and reasoning[1] in lead:
        lead = lead[lead.index(reasoning[1]) + len(reasoning[1]) :]
    called = render(_turn(ToolCall(name=_NAME, arguments={_KEY: _VALUE})))
    if "<|channel|>" in plain and "<|message|>" in plain:
        return ReplyFormat(reasoning=reasoning, around=("", ""), calls=None, channels=True)
    header = ""
    has_header = not only_before_calls and reasoned is not None and _VALUE in reasoned
    if has_header and reasoned is not None and reasoning is not None and reasoning[1] in reasoned:
        header = reasoned.partition(reasoning[1])[2].partition(_VALUE)[0].strip()
        header = header.removesuffix(lead.strip()).strip()
    form = ReplyFormat(
        reasoning=reasoning, around=(lead.strip(), trail.strip()), calls=None, header=header, opening=prompt.strip()
    )
    if called is None or _NAME not in called or _KEY not in called or _VALUE not in called:
        return form
    calls = _tool_format(render, reasoning, called)
    return replace(form, calls=calls)


def example_call(form: ReplyFormat, render: Render) -> str:
    """Text of a call with the name NAME as the template renders it, for the description of the tools."""
    text = render(_turn(ToolCall(name="NAME", arguments={"ARGUMENT": "VALUE"}))) or ""
    return (text.rpartition(form.reasoning[1])[2] if form.reasoning is not None else text).strip()


def _turn(*calls: ToolCall) -> Message:
    return Message(role="assistant", content="", tool_calls=calls)


def _reasoning_marks(prompt: str, reasoned: str | None, lead: str) -> tuple[str, str] | None:
    """Marks around reasoning, from the rendered turn, or from the prompt if the prompt opens reasoning."""
    if reasoned is not None and _SECOND in reasoned:
        before, _, after = reasoned.partition(_SECOND)
        closing = _TAG.search(after.partition(_VALUE)[0])
        opened = [tag for tag in _TAG.findall(prompt) if closing is None or tag != closing[0]]
        opening = before.strip() or next(reversed(opened), "")
        if closing is not None and opening:
            return opening, closing[0]
    if _THINK[0] in prompt[-len(_THINK[0]) - 2 :] or _THINK[1] in lead:
        return _THINK
    return None


def _tool_format(render: Render, reasoning: tuple[str, str] | None, called: str) -> ToolFormat | None:
    """Format of calls, derived from a rendered call with a name, a key and a value."""

    def cut(text: str | None) -> str | None:
        """Text after an empty reasoning."""
        if text is None or reasoning is None or reasoning[1] not in text.partition(_NAME)[0]:
            return text
        return text.partition(reasoning[1])[2].lstrip()

    text = cut(called) or ""
    two = cut(
        render(_turn(ToolCall(name=_NAME, arguments={_KEY: _VALUE}), ToolCall(name=_NEXT, arguments={_KEY: _VALUE})))
    )
    key, value = text.find(_KEY), text.find(_VALUE)
    name = text.rfind(_NAME, 0, key) if _NAME in text[:key] else text.find(_NAME)
    for start in [match.start() for match in re.finditer(r"[\[{]", text) if match.start() < key]:
        try:
            record, end = _DECODER.raw_decode(text, start)
        except ValueError:
            continue
        if record == {_KEY: _VALUE} and name < start:
            marks = Marks(opening=text[:name], between=_between(text, two, end), closing=text[end:])
            return NamedCalls(marks, separator=text[name + len(_NAME) : start])
        keys = _call_keys(record)
        if keys is not None:
            marks = Marks(opening=text[:start], between=_between(text, two, end, json_at=True), closing=text[end:])
            layout = None if two is None else layout_of(text[start:end], two[start:], key=_KEY)
            return JsonCalls(marks, name=keys[0], arguments=keys[1], listed=isinstance(record, list), layout=layout)
    if not name < key < value:
        return None
    after_name, before_value, rest = (
        text[name + len(_NAME) : key],
        text[key + len(_KEY) : value],
        text[value + len(_VALUE) :],
    )
    if after_name == "(" and before_value in ("='", '="'):
        return PythonCalls(Marks(opening=text[:name], between=None, closing=rest[1:].removeprefix(")")))
    if after_name == "{" and before_value.startswith(":"):
        delimiter = before_value[1:]
        closing = rest.removeprefix(delimiter).removeprefix("}")
        end = len(text) - len(closing)
        marks = Marks(opening=text[:name], between=_between(text, two, end), closing=closing)
        return UnquotedCalls(marks, delimiter=delimiter)
    return _tagged(render, cut, text, two, (name, key, value))


def _tagged(
    render: Render,
    cut: Callable[[str | None], str | None],
    text: str,
    two: str | None,
    positions: tuple[int, int, int],
) -> ToolFormat | None:
    """Format with an element per argument, derived from the difference that a second argument makes."""
    name, key, value = positions
    longer = cut(render(_turn(ToolCall(name=_NAME, arguments={_KEY: _VALUE, _SECOND: _NEXT}))))
    if longer is None or _SECOND not in longer or _NEXT not in longer:
        return None
    before_key, before_value = text[name + len(_NAME) : key], text[key + len(_KEY) : value]
    step = longer[longer.index(_VALUE) + len(_VALUE) : longer.index(_SECOND)]
    opening = common_prefix(before_key[::-1], step[::-1])[::-1]
    opening = opening[max(opening.find("<"), 0) :]  # what comes before the tag of an argument ends the one before it
    end = step[: len(step) - len(opening)]
    rest = text[value + len(_VALUE) :]
    if not before_value.strip() or not end.strip() or not rest.startswith(end.rstrip()):
        return None
    closing = rest[len(end if rest.startswith(end) else end.rstrip()) :]
    quoted = before_value.endswith('"') and end.startswith('"')
    number = cut(render(_turn(ToolCall(name=_NAME, arguments={_KEY: _NUMBER})))) or ""
    before_number = number.partition(_KEY)[2].partition(str(_NUMBER))[0]
    return TaggedCalls(
        Marks(opening=text[:name], between=_between(text, two, len(text) - len(closing)), closing=closing),
        separator=before_key[: len(before_key) - len(opening)],
        key=opening,
        value=before_value[:-1] if quoted else before_value,
        end=end[1:] if quoted else end,
        quoted=quoted,
        json_value=before_number if not quoted and before_number not in ("", before_value) else None,
    )


def _between(text: str, two: str | None, end: int, *, json_at: bool = False) -> str | None:
    """Text between two calls, from the end of the first to the name of the second, or to its JSON with `json_at`."""
    if two is None or two[:end] != text[:end] or _NEXT not in two[end:]:
        return None
    key = two.find(_KEY, end)
    stop = two.rfind(_NEXT, end, key) if _NEXT in two[end:key] else two.index(_NEXT, end)
    if json_at:
        starts = (at.start() for at in re.finditer(r"[\[{]", two) if end <= at.start() < stop)
        stop = next((start for start in starts if _is_json(two, start)), stop)
    return two[end:stop].replace(_NEXT, _NAME)


def _is_json(text: str, start: int) -> bool:
    """Check that JSON begins at `start`, and not a mark such as [TOOL_CALLS]."""
    try:
        _DECODER.raw_decode(text, start)
    except ValueError:
        return False
    return True


def _call_keys(record: Any) -> tuple[str, str] | None:
    """Keys of name and arguments in a rendered call, or in the first call of a list."""
    if isinstance(record, list) and record:
        record = record[0]
    if isinstance(record, dict) and isinstance(record.get("function"), dict):
        record = record["function"]
    if not isinstance(record, dict):
        return None
    names = [key for key, part in record.items() if part == _NAME]
    arguments = [key for key, part in record.items() if part in ({_KEY: _VALUE}, json.dumps({_KEY: _VALUE}))]
    return (names[0], arguments[0]) if names and arguments else None
