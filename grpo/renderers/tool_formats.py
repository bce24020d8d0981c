"""Formats of tool calls in a reply, read off from what a chat template renders.

    calls in JSON           <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>     Hermes, Llama 3, Mistral
    name, then JSON         f<｜tool▁sep｜>{"x": 1}                                           DeepSeek, Mistral, Kimi
    an element an argument  <function=f><parameter=x>1</parameter></function>               Qwen3.5, GLM, MiniMax
    keys without quotes     call:f{x:<|"|>a<|"|>}                                           Gemma 4
    Python                  [f(x=1)]                                                        LFM2

A format is the text before, between and after the parts of a call; white space may vary. A call in another form is
malformed, and so are markers without a call.
"""

from __future__ import annotations

import ast
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import regex

from grpo.messages import Tool, ToolCall

EXAMPLE_NAME = "qzname"
"""Name of the call that a format is read from; some families repeat it before a call."""
_NAME = re.compile(r"[\w.\-/]+")
_DECODER = json.JSONDecoder()
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
_SHOWN = 80
_LEADING = r"(?:<\|\w+\|>\s*)?"
"""A token that some families write before a call without a marker, such as Llama's <|python_tag|>."""


class MalformedCall(ValueError):
    """Text that begins as a tool call and is not one; its message is the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Texts before the first call, between two calls, and after the last."""

    opening: str
    between: str | None
    closing: str

    @property
    def bare(self) -> bool:
        """No marker: a reply is a call if it begins as one."""
        return not re.search(r"\w", self.opening)


class ToolFormat(ABC):
    """Parser of the calls in a reply."""

    _beginning: ClassVar[str] = r'\[?\s*\{\s*"(?:name|type|function)"'
    """Expression with which a call begins where no marker opens it."""

    def __init__(self, marks: Marks) -> None:
        self._bare = marks.bare
        self._open = re.compile((_LEADING if self._bare else "") + _core(marks.opening) + r"\s*")
        start = rf"\s*{self._open.pattern}{self._beginning}" if self._bare else self._open.pattern
        self._partial = regex.compile(start)
        between = "(?!)" if marks.between is None else pattern(marks.between).pattern
        # without a marker, calls follow each other after a semicolon or white space as well
        unmarked = rf"(?:{between}|\s*;?\s*{self._open.pattern})(?={self._beginning})"
        self._next = re.compile(unmarked if self._bare else between)
        self._close = re.compile(r"\s*" + _core(marks.closing))

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[str, tuple[ToolCall, ...]]:
        """Content and calls of a reply; raises `MalformedCall` with the text of a call that cannot be parsed."""
        match = self._open.match(text, len(text) - len(text.lstrip())) if self._bare else self._open.search(text)
        if match is None or (self._bare and re.match(self._beginning, text[match.end() :]) is None):
            return text, ()
        contents, calls = [text[: match.start()]], []
        start = position = match.end()
        while True:
            try:
                parsed, position = self._calls(text, position, tools)
            except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
                raise MalformedCall(self._body(text, start)) from error
            calls += parsed
            closing = self._close.match(text, position)
            following = self._next.match(text, position)
            is_end = closing is not None and following is not None and self._ends(closing, following)
            if following is not None and (self._bare or following.end() > position) and not is_end:
                start = position = following.end()
                continue
            if closing is None and text[position:].strip():
                raise MalformedCall(self._body(text, start))
            position = len(text) if closing is None else closing.end()
            again = None if self._bare else self._open.search(text, position)
            if again is None:
                return "".join((*contents, text[position:])), tuple(calls)
            contents.append(text[position : again.start()])
            start = position = again.end()

    @abstractmethod
    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        """Calls that begin at a position, and the position after them; raises `ValueError` for another text."""

    def call_start(self, text: str) -> int:
        """Position from which an unfinished reply is a call, or may become one; its length if it is content so far."""
        if self._bare:
            return len(text) if self._partial.match(text, partial=True) is None else 0
        match = self._partial.search(text, partial=True)
        return len(text) if match is None else int(match.start())

    @staticmethod
    def _ends(closing: re.Match[str], following: re.Match[str]) -> bool:
        """True for a closing text where only white space separates calls."""
        return bool(closing[0].strip()) and not following[0].strip()

    def _body(self, text: str, start: int) -> str:
        closing = self._close.search(text, start) if self._close.pattern.strip(r"\s*") else None
        return text[start : closing.start() if closing else len(text)].strip()[:_SHOWN]


class JsonCalls(ToolFormat):
    """A JSON object, or a list of them, with a name and arguments under these keys."""

    def __init__(self, marks: Marks, *, name: str, arguments: str) -> None:
        super().__init__(marks)
        self._keys = (name, arguments)

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        record, end = _json_at(text, position)
        return [self._call(part) for part in (record if isinstance(record, list) else [record])], end

    def _call(self, record: Any) -> ToolCall:
        if isinstance(record, dict) and isinstance(record.get("function"), dict):
            record = record["function"]
        name, key = self._keys
        if not isinstance(record, dict) or not isinstance(record.get(name), str) or key not in record:
            raise ValueError("no name or no arguments")
        arguments = record[key]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        if not isinstance(arguments, dict):
            raise ValueError("arguments are not an object")
        return ToolCall(name=record[name], arguments=arguments)


class NamedCalls(ToolFormat):
    """A name, a separator, and the arguments in JSON."""

    def __init__(self, marks: Marks, *, separator: str) -> None:
        super().__init__(marks)
        self._separator = pattern(separator)

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        name, position = _name_at(text, position)
        arguments, end = _json_at(text, _after(self._separator, text, position))
        if not isinstance(arguments, dict):
            raise ValueError("arguments are not an object")
        return [ToolCall(name=name, arguments=arguments)], end


class TaggedCalls(ToolFormat):
    """A name, then an element for each argument; a text stands as it is, any other value in JSON.

    The schema of the tool decides whether `75001` is a text.
    """

    def __init__(self, marks: Marks, *, separator: str, key: str, value: str, end: str, quoted: bool) -> None:
        super().__init__(marks)
        self._separator = pattern(separator)
        self._argument = re.compile(
            rf"{pattern(key).pattern}(?P<key>[^\n]+?){_core(value)}(?P<value>.*?){_core(end)}", re.DOTALL
        )
        self._margins = (value[len(value.rstrip()) :], end[: len(end) - len(end.lstrip())])
        self._quoted = quoted

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        name, position = _name_at(text, position)
        position = _after(self._separator, text, position)
        schemas: Mapping[str, Any] = next(
            (tool.parameters.get("properties", {}) for tool in tools if tool.name == name), {}
        )
        arguments: dict[str, Any] = {}
        while match := self._argument.match(text, position):
            raw = match["value"].removeprefix(self._margins[0]).removesuffix(self._margins[1])
            arguments[match["key"]] = json.loads(raw) if self._quoted else _typed(raw, schemas.get(match["key"]))
            position = match.end()
        return [ToolCall(name=name, arguments=arguments)], position


class UnquotedCalls(ToolFormat):
    """A name and an object whose keys have no quotes and whose texts stand between delimiters of the family."""

    def __init__(self, marks: Marks, *, delimiter: str) -> None:
        super().__init__(marks)
        self._delimiter = delimiter

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        from transformers.utils.chat_parsing.content_parsers import parse_content

        name, position = _name_at(text, position)
        closing = self._close.search(text, position)
        end = closing.start() if closing else len(text.rstrip())
        delimiters = [[self._delimiter, self._delimiter]]
        arguments = parse_content(text[position:end], "json", {"string_delims": delimiters, "unquoted_keys": True})
        if not isinstance(arguments, dict):
            raise ValueError("arguments are not an object")
        return [ToolCall(name=name, arguments=arguments)], end


class PythonCalls(ToolFormat):
    """Calls in Python with literal keyword arguments, parsed and never evaluated."""

    _beginning = r"[\w.\-]+\("

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        closings = list(self._close.finditer(text, position))
        closing = closings[-1 if self._bare else 0] if closings else None  # a bare bracket ends a list as well
        end = closing.start() if closing else len(text.rstrip().removesuffix("]"))
        return list(map(_python_call, _listed(text[position:end].strip()))), end if closing else len(text)


def _listed(text: str) -> list[ast.expr]:
    """Expressions between commas or on lines of their own."""
    try:
        listed = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError:
        statements = ast.parse(text).body
        if not all(isinstance(statement, ast.Expr) for statement in statements):
            raise
        return [statement.value for statement in statements if isinstance(statement, ast.Expr)]
    if not isinstance(listed, ast.List):  # as in [f()][g()], which is an index
        raise ValueError("not a list of calls")
    return listed.elts


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keyword arguments")
    arguments = {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    return ToolCall(name=ast.unparse(node.func), arguments=arguments)


def _literal(node: ast.expr) -> Any:
    """Value of a literal, in Python or JSON."""

    class Constants(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.Constant(_CONSTANTS[name.id]) if name.id in _CONSTANTS else name

    return _as_json(ast.literal_eval(Constants().visit(node)))


def _as_json(value: Any) -> Any:
    """The value with lists for tuples; raises `ValueError` for one that JSON does not have, such as a set or `...`."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except TypeError as error:
        raise ValueError(f"{type(value).__name__} is not a value of JSON") from error


def pattern(text: str) -> re.Pattern[str]:
    """Regular expression of a text in which white space may vary."""
    return re.compile(rf"\s*{_core(text)}\s*")


def _core(text: str) -> str:
    """Expression of a text in which white space, numbers and the example's name may vary: some families count calls."""
    words = (re.sub(r"\d+", r"\\d+", re.escape(word)) for word in text.split())
    return r"\s*".join(word.replace(EXAMPLE_NAME, _NAME.pattern) for word in words)


def _after(expected: re.Pattern[str], text: str, position: int) -> int:
    match = expected.match(text, position)
    if match is None:
        raise ValueError(f"no {expected.pattern} after the name")
    return match.end()


def _name_at(text: str, position: int) -> tuple[str, int]:
    match = _NAME.match(text, position)
    if match is None:
        raise ValueError("no name")
    return match[0], match.end()


def _json_at(text: str, position: int) -> tuple[Any, int]:
    return _DECODER.raw_decode(text, position)


def _typed(raw: str, schema: Any) -> Any:
    """Value of an argument without quotes, by its JSON schema; without one, in JSON or Python where it is one."""
    types = set(_types(schema))
    if types == {"string"}:
        return raw
    if raw.strip() == "None" and "null" in types:
        return None
    try:
        value = json.loads(raw)
    except ValueError:
        if "string" in types:
            return raw
        try:
            return _as_json(ast.literal_eval(raw.strip()))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return raw
    return raw if "string" in types and isinstance(value, (int, float)) and not {"integer", "number"} & types else value


def _types(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        declared = schema.get("type", ())
        yield from [declared] if isinstance(declared, str) else declared
        for union in ("anyOf", "oneOf"):
            for choice in schema.get(union, ()):
                yield from _types(choice)
