"""Formats of tool calls in a reply, derived from what a chat template renders.

    calls in JSON           <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>     Hermes, Llama 3, Mistral
    name, then JSON         f<｜tool▁sep｜>{"x": 1}                                           DeepSeek, Mistral, Kimi
    element per argument    <function=f><parameter=x>1</parameter></function>               Qwen3.5, GLM, MiniMax
    keys without quotes     call:f{x:<|"|>a<|"|>}                                           Gemma 4
    Python                  [f(x=1)]                                                        LFM2

A format is the text before, between and after the parts of a call. White space may vary. A call in another form is
malformed, and so are markers without a call. The other calls of the reply are still parsed, up to the 64th malformed
call. If a call leaves its arguments out, or sets them to null, it has no arguments.

A marker is only a mention in prose if it stands in quotes, or if no call follows and nothing closes it. With calls in
JSON it is also a mention if it stands within a sentence and its closing mark follows without a call between them, or
if another marker follows before anything closes it.

A call is repaired, and `ToolCall.repaired` says so, if its arguments are left out, null, or under the other one of the
names `arguments` and `parameters`, if it stands in a code fence, or if the marker of the next call comes instead of its
own closing mark.

The text comes from a model, so the work must not grow faster than the reply's length. Therefore white space is read
possessively, marks are searched without the white space before them, and the last closing mark is searched only once.

Values are decoded in `grpo.strict_json`. If no strict JSON reader accepts a value, its call is malformed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import regex

from grpo.messages import Tool, ToolCall
from grpo.renderers.argument_values import read_arguments, typed_value
from grpo.renderers.call_layout import EXAMPLE_NAME, Layout
from grpo.strict_json import NotStrictJSON, decode, decode_at, encode

_NAME = re.compile(r"[\w.\-/]+")
SHOWN = 80
"""Characters of a malformed call that its reason shows."""
_LEADING = r"(?:<\|\w++\|>\s*+)?"
"""A token that some families write before a call without a marker, e.g. Llama's <|python_tag|>."""


_MOST_MALFORMED = 64
"""Malformed calls of a reply after which the rest is content, because each may cost a search through the rest."""
_END = re.compile(r"\s*+\Z")
_FAULTS = (ValueError, SyntaxError, RecursionError, MemoryError)
_QUOTES = {"`": "`", '"': '"', "'": "'", "“": "”", "‘": "’"}
_UNCLOSED, _FENCED = "no closing mark", "code fence"
_FENCE = re.compile(r"```\w*+\s*+")
_FENCE_END = re.compile(r"\s*+```")
_CALL_KEYS = {"name", "arguments", "parameters", "type", "id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCalls:
    """Content and calls of a reply. If a call is malformed, `malformed` is the reason for the first one.

    The text of a malformed call is part of the content.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: str | None = None


class PartlyMalformed(ValueError):
    """Raised if a list of calls is partly malformed. Has the valid calls, the position after the list, and the rest."""

    def __init__(self, calls: Sequence[ToolCall], position: int, rejected: Sequence[str], reason: str) -> None:
        super().__init__(reason)
        self.calls, self.position, self.rejected = list(calls), position, " ".join(rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Texts before the first call, between two calls, and after the last."""

    opening: str
    between: str | None
    closing: str

    @property
    def bare(self) -> bool:
        """True without a marker: a reply is then a call if it begins like one."""
        return not re.search(r"\w", self.opening)


class ToolFormat(ABC):
    """Parser of the calls in a reply."""

    _beginning: ClassVar[str] = r'\[?\s*+\{\s*+"(?:name|type|function)"'
    """Expression that a call begins with if no marker opens it."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self._bare = marks.bare
        self._open = re.compile((_LEADING if self._bare else "") + _core(marks.opening) + r"\s*+")
        start = rf"\s*+{self._open.pattern}{self._beginning}" if self._bare else self._open.pattern
        self._partial = regex.compile(start)
        self._opens = re.compile(rf"\s*+{self._open.pattern}")
        self._begins = re.compile(self._beginning)
        between = r"(?!)" if marks.between is None else _core(marks.between) + r"\s*+"
        next_ = rf"(?:{between}|;?\s*+{self._open.pattern})(?={self._beginning})" if self._bare else between
        self._next_mark, self._next = re.compile(next_), re.compile(rf"\s*+{next_}")
        # without a marker, calls follow each other after a semicolon or white space as well
        closing = _core(marks.closing)
        self._closing_mark, self._close = re.compile(closing or r"(?!)"), re.compile(r"\s*+" + closing)

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedCalls:
        """Parse the calls of a reply. The other calls are parsed even if one is malformed."""
        closed = [mark.start() for mark in self._closing_mark.finditer(text)]
        match = self._first(text, closed)
        if match is None:
            return ParsedCalls(content=text)
        contents, calls = [text[: match.start()]], list[ToolCall]()
        malformed: str | None = None
        faults = 0
        begun, position = match.start(), match.end()
        while True:
            start = position
            parsed, position, fault, rejected = self._call_at(text, start, tools, closed)
            if fault is not None:
                malformed, faults = malformed or fault, faults + 1
                contents.append(text[begun:position] if rejected is None else rejected)
            calls += parsed
            closing = self._close.match(text, position)
            following = self._next.match(text, position)
            is_end = closing is not None and following is not None and self._ends(closing, following)
            if following is not None and following.end() > start and not is_end and faults < _MOST_MALFORMED:
                begun, position = position, following.end()
                continue
            opened = None if self._bare or closing is not None else self._open_at(text, position, closed)
            end = closing.end() if closing is not None else len(text) if opened is None else opened.start()
            if fault is not None and rejected is None:  # keep the text of the call as it was written
                contents.append(text[position:end])
            again = None if self._bare or faults >= _MOST_MALFORMED else self._open_at(text, end, closed)
            if again is None:
                return ParsedCalls(content="".join((*contents, text[end:])), calls=tuple(calls), malformed=malformed)
            contents.append(text[end : again.start()])
            begun, position = again.start(), again.end()

    def _call_at(
        self, text: str, start: int, tools: Sequence[Tool], closed: Sequence[int]
    ) -> tuple[list[ToolCall], int, str | None, str | None]:
        """Parse the calls at a position, and return calls, the position after them, the fault, and the rejected text.

        The fault is None if no call is malformed. The rejected text is None unless only a part of the calls is
        malformed. `closed` has the positions of the closing texts of the reply.
        """
        fault = rejected = None
        try:
            parsed, position = self._calls(text, start, tools)
        except PartlyMalformed as error:
            parsed, position, fault, rejected = error.calls, error.position, str(error), error.rejected
        except _FAULTS as error:
            return [], self._resume(text, start, closed), self._fault(text, start, error), None
        if self._close.match(text, position) or self._next.match(text, position) or _END.match(text, position):
            return parsed, position, fault, rejected
        if not self._bare and self._opens.match(text, position):
            return [replace(call, repaired=_UNCLOSED) for call in parsed], position, fault, rejected
        return [], self._resume(text, start, closed), self._fault(text, start), None

    def _resume(self, text: str, start: int, closed: Sequence[int]) -> int:
        """Position after a malformed call: the next closing text or marker, or else the end of the text."""
        marks = [self._closing_mark.search(text, start), self._next_mark.search(text, start)]
        stops = [after_word(text, mark.start(), start) for mark in marks if mark is not None and mark[0].strip()]
        opened = None if self._bare else self._open_at(text, start, closed)
        return min([*stops, *([] if opened is None else [opened.start()])], default=len(text))

    def _fault(self, text: str, start: int, error: BaseException | None = None) -> str:
        marks = [self._closing_mark, self._open] if not self._bare else [self._closing_mark]
        stop = min((match.start() for mark in marks if (match := mark.search(text, start))), default=len(text))
        shown = text[start:stop].strip()[:SHOWN]
        return shown + refusal(error)

    def _first(self, text: str, closed: Sequence[int]) -> re.Match[str] | None:
        """First marker of a call. In a format without markers, the start of a reply that begins like a call."""
        if not self._bare:
            return self._open_at(text, 0, closed)
        match = self._open.match(text, len(text) - len(text.lstrip()))
        return match if match is not None and self._begins.match(text, match.end()) else None

    def _open_at(self, text: str, position: int, closed: Sequence[int]) -> re.Match[str] | None:
        """Next marker that is not a mention in prose."""
        for match in self._open.finditer(text, position):
            if not self._is_mention(text, match, closed):
                return match
        return None

    def _is_mention(self, text: str, marker: re.Match[str], closed: Sequence[int]) -> bool:
        """True if a marker is in quotes, or if no call follows it and nothing closes it, or only a sentence does."""
        mark = marker[0].strip()
        stop = marker.start() + len(marker[0].rstrip())
        begin = stop - len(mark)
        before, after = text[begin - 1 : begin], text[stop : stop + 1]
        if before and _QUOTES.get(before) == after:
            return True
        end = marker.end()
        if end >= len(text) or self._begins_call(text, end):
            return False
        place = bisect_left(closed, end)
        if place == len(closed):
            return True
        closing = self._closing_mark.match(text, closed[place])
        following = self._open.search(text, end, closed[place])
        if closing is None or self._opens.match(text, closing.end()):  # the next call follows
            return following is not None
        after = text[closing.end() : closing.end() + 2]
        return following is not None or all(
            part.strip() and "\n" not in part for part in (text[max(0, begin - 2) : begin], after)
        )

    def _begins_call(self, text: str, position: int) -> bool:
        """Check that a text after a marker may be the beginning of a call."""
        return True

    @abstractmethod
    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        """Parse the calls at a position, and return them and the position after them. Raises `ValueError` otherwise."""

    def call_start(self, text: str, start: int = 0, searched: int = 0) -> int:
        """Position from which an unfinished reply is a call, or may become one; its length if it is content so far.

        The reply begins at `start`. `searched` is what the previous call returned for a shorter beginning of this text.
        """
        if self._bare:
            ruled_out = searched > start or self._partial.match(text, start, partial=True) is None
            return len(text) if ruled_out else start
        match = self._partial.search(text, max(start, searched), partial=True)
        return len(text) if match is None else int(match.start())

    @staticmethod
    def _ends(closing: re.Match[str], following: re.Match[str]) -> bool:
        """True if the closing text is not blank and only white space separates calls."""
        return bool(closing[0].strip()) and not following[0].strip()


class JsonCalls(ToolFormat):
    """A JSON object, or a list of objects, with a name and arguments under the given keys."""

    def __init__(
        self, marks: Marks, *, name: str, arguments: str, listed: bool = False, layout: Layout | None = None
    ) -> None:
        super().__init__(marks)
        self.keys = (name, arguments)
        self.listed = listed
        """The template prints a list of calls."""
        self.layout = layout or Layout()

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        fence = _FENCE.match(text, position)
        record, end = decode_at(text, position if fence is None else fence.end())
        if fence is not None:
            end = _after(_FENCE_END, text, end)
        calls, rejected = list[ToolCall](), list[str]()
        for part in record if isinstance(record, list) else [record]:
            try:
                call = self._call(part)
            except ValueError:
                if not isinstance(record, list) or len(record) == 1:
                    raise
                rejected.append(encode(part))
            else:
                calls.append(call if fence is None else replace(call, repaired=call.repaired or _FENCED))
        if rejected and calls:
            raise PartlyMalformed(calls, end, rejected, rejected[0][:SHOWN])
        if rejected:
            raise ValueError("no call")
        return calls, end

    def _begins_call(self, text: str, position: int) -> bool:
        return text[position] in "{[" or _FENCE.match(text, position) is not None

    def _call(self, record: Any) -> ToolCall:
        if isinstance(record, dict) and isinstance(record.get("function"), dict):
            record = record["function"]
        name, key = self.keys
        if not isinstance(record, dict) or not isinstance(record.get(name), str):
            raise ValueError("no name")
        keys = [other for other in (key, "arguments", "parameters") if other in record]
        if not keys and not record.keys() <= {*_CALL_KEYS, name}:
            raise ValueError("no arguments")
        given = next((other for other in keys if record[other] is not None), None)
        repaired = "no arguments" if not keys else "null arguments" if given is None else None
        if given is not None and given != key:
            repaired = f"{given} for {key}"
        arguments = read_arguments(None if given is None else record[given])
        return ToolCall(name=record[name], arguments=arguments, repaired=repaired)


class NamedCalls(ToolFormat):
    """A name, a separator, and the arguments in JSON."""

    def __init__(self, marks: Marks, *, separator: str) -> None:
        super().__init__(marks)
        self.separator_text = separator
        self._separator = pattern(separator)

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        name, position = name_at(text, position)
        arguments, end = decode_at(text, _after(self._separator, text, position))
        repaired = "null arguments" if arguments is None else None
        return [ToolCall(name=name, arguments=read_arguments(arguments), repaired=repaired)], end


class TaggedCalls(ToolFormat):
    """A name, then an element per argument. A text is written without quotes, and any other value in JSON.

    The schema of the tool decides if `75001` is a text, unless the family marks values that are not texts (DeepSeek V4:
    `string="true"`, `string="false"`). Then `json_value` stands before such values.
    """

    def __init__(
        self,
        marks: Marks,
        *,
        separator: str,
        key: str,
        value: str,
        end: str,
        quoted: bool,
        json_value: str | None = None,
    ) -> None:
        super().__init__(marks)
        self.separator_text, self.texts, self.quoted = separator, (key, value, end), quoted
        """Texts after the name, before the name of an argument, before its value, and after it."""
        self._separator = pattern(separator)
        self.json_value = json_value
        before = _core(value) if json_value is None else rf"(?:(?P<json>{_core(json_value)})|{_core(value)})"
        self._argument = re.compile(
            rf"{pattern(key).pattern}(?>(?P<key>[^\n]+?){before})(?P<value>.*?){_core(end)}", re.DOTALL
        )
        self._margins = (value[len(value.rstrip()) :], end[: len(end) - len(end.lstrip())])

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        name, position = name_at(text, position)
        position = _after(self._separator, text, position)
        schema: Mapping[str, Any] = next((tool.parameters for tool in tools if tool.name == name), {})
        arguments: dict[str, Any] = {}
        while match := self._argument.match(text, position):
            raw = match["value"].removeprefix(self._margins[0]).removesuffix(self._margins[1])
            if not self._bare and self._open.search(raw):
                raise ValueError("a value has the mark of the next call, so it is not closed")
            if match["key"] in arguments:
                raise NotStrictJSON(f"argument {match['key']} is given twice")
            arguments[match["key"]] = self._value(raw, match, schema)
            position = match.end()
        return [ToolCall(name=name, arguments=arguments)], position

    def _value(self, raw: str, match: re.Match[str], schema: Mapping[str, Any]) -> Any:
        if self.json_value is not None:
            return raw if match["json"] is None else decode(raw)
        return decode(raw) if self.quoted else typed_value(raw, match["key"], schema)


def refusal(error: BaseException | None) -> str:
    """Reason why a value is refused although it may look like JSON, e.g. ` (NaN is not a number of JSON)`."""
    return f" ({error})" if isinstance(error, NotStrictJSON) and not str(error).startswith("not JSON") else ""


def pattern(text: str) -> re.Pattern[str]:
    """Regular expression that matches a text with any white space between its words."""
    return re.compile(rf"\s*+{_core(text)}\s*+")


def _core(text: str) -> str:
    """Expression that matches a text with other white space, numbers (some families count calls) or call name."""
    words = (re.sub(r"\d+", r"\\d+", re.escape(word)) for word in text.split())
    return r"\s*+".join(word.replace(EXAMPLE_NAME, _NAME.pattern) for word in words)


def _after(expected: re.Pattern[str], text: str, position: int) -> int:
    match = expected.match(text, position)
    if match is None:
        raise ValueError(f"no {expected.pattern} after the name")
    return match.end()


def after_word(text: str, position: int, start: int) -> int:
    """Position where the white space before a position begins, but not before `start`."""
    while position > start and text[position - 1].isspace():
        position -= 1
    return position


def name_at(text: str, position: int) -> tuple[str, int]:
    """Name of a call at a position, and the position after it. Raises `ValueError` if the name is missing."""
    match = _NAME.match(text, position)
    if match is None:
        raise ValueError("no name")
    return match[0], match.end()
