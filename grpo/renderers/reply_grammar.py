r"""Grammars of replies in the format of a chat template, for constrained decoding, in the Lark dialect of llguidance.

    a schema         start: %json {…}
    a call           start: "<tool_call>" "{\"name\": \"f\", \"arguments\": " %json {…} "}" "</tool_call>"
    text or calls    start: TEXT | calls            TEXT has no marker of a call
    with reasoning   start: reasoning? body

JSON is written like Python writes it, `{"a": 1, "b": 2}`, because templates print calls so, and because a model could
otherwise continue with white space forever. A control token of the template is matched as that token, not as its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo.errors import PolicyError
from grpo.renderers.encoding import any_of
from grpo.renderers.reply_format import TAGGED_JSON, ReplyFormat
from grpo.renderers.tool_formats import JsonCalls, NamedCalls, TaggedCalls, ToolFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
_ANY = r"/(.|\n)*/"
_BARE_CALL = r'/\s*(<\|\w+\|>\s*)?\[?\s*\{\s*"(name|type|function)"(.|\n)*/'
"""Reply that is read as a call if the format has no marker."""
_LARGEST = 10**15
"""Bound of numbers if the schema has none, so that they are written without an exponent."""
_SMALLEST = 1e-9
"""Number next to 0 in a schema that excludes 0."""
_NUMBER_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_VALUES = {"enum", "const", "default", "examples"}
"""Keywords of a schema with values that are not schemas."""
_BY_NAME = {"properties", "patternProperties", "$defs", "definitions"}
"""Keywords with values that map names to schemas."""
_OPEN = {"additionalProperties", "patternProperties", "minProperties", "$ref", "anyOf", "oneOf"}
"""Keywords that allow more properties than the named ones."""
_ANY_RULES = (
    'any_object: "{" (any_pair (", " any_pair)*)? "}"',
    'any_pair: ANY_TEXT ": " any_value',
    'any_value: ANY_TEXT | ANY_NUMBER | "true" | "false" | "null" | any_object | any_list',
    'any_list: "[" (any_value (", " any_value)*)? "]"',
    r'ANY_TEXT: /"([^"\\\x00-\x1f\x7f]|\\["\\\/bfnrt])*"/',
    r"ANY_NUMBER: /-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?/",
)
"""Rules of any object. Numbers have no exponent, because a number with one could be infinite."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class NoGrammar(PolicyError):
    """Raised if the calls of a chat template have no grammar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyShape:
    """Replies that are allowed: text, calls of tools, or either."""

    schema: Mapping[str, Any] | None = None
    """JSON schema of a reply without calls; None for any text."""
    has_text: bool = True
    """False if a reply has to be a call."""
    calls: Mapping[str, Mapping[str, Any]] | None = None
    """JSON schema of the arguments by name of the tool; None or empty if a reply has no calls."""
    one_call: bool = False
    """A reply has no more than one call."""


def reply_grammar(
    form: ReplyFormat, shape: ReplyShape, tokenizer: PreTrainedTokenizerBase, *, reasons: bool, begun: bool
) -> str:
    """Grammar of the replies of a shape, for a template that `reasons`, and if `begun`, opens reasoning in the prompt.

    Raises `NoGrammar` if the form of the calls, or the shape, has no grammar.
    """
    return _Writer(form, shape, tokenizer).write(reasons=reasons, begun=begun)


class _Writer:
    """Rules of one grammar."""

    def __init__(self, form: ReplyFormat, shape: ReplyShape, tokenizer: PreTrainedTokenizerBase) -> None:
        self._form, self._shape = form, shape
        self._controls = {token.content: id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._split = any_of(frozenset(self._controls))
        self._rules: list[str] = []

    def write(self, *, reasons: bool, begun: bool) -> str:
        """Write the whole grammar."""
        if self._form.channels and (reasons or self._shape.calls):
            raise NoGrammar("replies of this model are messages in channels, which have no grammar here")
        body = " | ".join(f"({choice})" for choice in self._bodies())
        start = f"({body})"
        if reasons and self._form.reasoning is not None:
            start = f"reasoning{'' if begun else '?'} {start}"
            self._write_reasoning(self._form.reasoning, begun=begun)
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def _write_reasoning(self, marks: tuple[str, str], *, begun: bool) -> None:
        opening, closing = marks
        lead = "" if begun else self._literal(opening)
        header = self._literal(self._form.header) if self._form.header else ""
        self._rules.append(f"reasoning: {lead} {self._until(closing, 'THOUGHT')} SPACE? {header}")
        self._rules.append(r"SPACE: /[ \n]{1,4}/")

    def _until(self, mark: str, name: str) -> str:
        """Rule for any text up to and including a mark, which may have a control token in it, e.g. `</｜DSML｜x>`."""
        control = self._split.search(mark) if self._controls else None
        before = (mark if control is None else mark[: control.start()]).lstrip()
        rest = "" if control is None else self._literal(mark[control.start() :])
        if not before:  # white space before a control token is part of the text
            self._rules.append(f"{name}: {_ANY}")
            return f"{name} {rest}"
        suffix = mark if control is None else before
        self._rules.append(f"{name.lower()}[suffix={json.dumps(suffix)}]: {_ANY}")
        return f"{name.lower()} {rest}".strip()

    def _bodies(self) -> list[str]:
        shape, calls = self._shape, self._form.calls or TAGGED_JSON
        bodies = []
        text = shape.has_text and shape.schema is None
        if shape.schema is not None:
            before, after = (self._literal(part) if part else "" for part in self._form.around)
            bodies.append(f"{before} {self._json(shape.schema)} {after}")
        if shape.calls:
            marks = calls.marks
            if not marks.opening.strip() and not marks.bare:
                raise NoGrammar("calls of this model begin without a mark, and have no grammar here")
            rest = self._calls(calls)
            if text:
                bodies += self._text_and_calls(calls, rest)
            else:
                bodies.append(f"{self._literal(marks.opening)} {rest}")
        elif text:
            raise NoGrammar("a reply of any text needs no grammar")
        return bodies

    def _text_and_calls(self, calls: ToolFormat, rest: str) -> list[str]:
        """Bodies for text without a call, and for calls with or without a text before them."""
        opening = calls.marks.opening
        literal = self._literal(opening)
        other = "" if calls is TAGGED_JSON else f" & ~{_containing(TAGGED_JSON.marks.opening.strip())}"
        if calls.marks.bare:
            self._rules.append(rf"TEXT: /(.|\n)+/ & ~{_BARE_CALL}{other}")
            return ["TEXT", f"{literal} {rest}"]
        if opening.strip() in self._controls:
            self._rules.append(rf"TEXT: /(.|\n)+/{other}")
            return [f"TEXT ({literal} {rest})?", f"{literal} {rest}"]
        mark = opening.split()[0]
        self._rules.append(rf"TEXT: /(.|\n)+/ & ~{_containing(mark)}{other}")
        self._rules.append(f"lead[suffix={json.dumps(mark)}]: {_ANY}{other}")
        return ["TEXT", f"lead {self._literal(opening[opening.index(mark) + len(mark) :])} {rest}"]

    def _calls(self, form: ToolFormat) -> str:
        """Rule for calls from after the opening mark of the first call to the closing mark."""
        marks = form.marks
        choices = [
            self._call(form, name, schema, k) for k, (name, schema) in enumerate((self._shape.calls or {}).items())
        ]
        self._rules.append("call: " + " | ".join(choices))
        opening, closing = self._literal(marks.opening), self._literal(marks.closing)
        if isinstance(form, JsonCalls) and form.listed:
            layout = form.layout
            more = "" if self._shape.one_call else f" ({self._literal(layout.between)} call)*"
            return f"{self._literal(layout.opening)} call{more} {self._literal(layout.closing)} {closing}"
        if self._shape.one_call or marks.bare:
            return f"call {closing}"
        if marks.between is not None:
            return f"call ({self._literal(marks.between)} call)* {closing}"
        return f"call {closing} ({opening} call {closing})*"

    def _call(self, form: ToolFormat, name: str, schema: Mapping[str, Any], number: int) -> str:
        rule = f"call_{number}"
        if isinstance(form, JsonCalls):
            key, arguments = (json.dumps(part) for part in form.keys)
            before_name = form.layout.before_name or f"{{{key}: "
            before_arguments = form.layout.before_arguments or f", {arguments}: "
            head = f"{self._counted(before_name)} {self._literal(json.dumps(name) + before_arguments)}"
            self._rules.append(f"{rule}: {head} {self._json(schema)} {self._literal(form.layout.end)}")
        elif isinstance(form, NamedCalls):
            self._rules.append(f"{rule}: {self._literal(name + form.separator_text)} {self._json(schema)}")
        elif isinstance(form, TaggedCalls):
            self._rules.append(
                f"{rule}: {self._literal(name + form.separator_text)} {self._arguments(form, schema, rule)}"
            )
        else:
            raise NoGrammar("calls of this model are neither JSON nor tagged, and have no grammar here")
        return rule

    def _arguments(self, form: TaggedCalls, schema: Mapping[str, Any], rule: str) -> str:
        """Rule with an element per argument, in the order of the schema. Optional arguments may be left out."""
        key, value, end = form.texts
        required, parts = schema.get("required", ()), []
        for position, (name, of) in enumerate(schema.get("properties", {}).items()):
            head = self._literal(f"{key}{name}{value}")
            of = {**of, **{part: schema[part] for part in ("$defs", "definitions") if part in schema}}
            if form.quoted or of.get("type") != "string":
                head = self._literal(f"{key}{name}{form.json_value or value}")
                element = f"{head} {self._json(of)} {self._literal(end)}"
            elif "enum" in of:
                element = f"{head} ({' | '.join(self._literal(str(text)) for text in of['enum'])}) {self._literal(end)}"
            elif set(of) - {"type", "description", "title", "default"}:
                keyword = min(set(of) - {"type", "description", "title", "default"})
                raise NoGrammar(f"{keyword} of the text {name} cannot be kept in the calls of this model")
            else:
                element = f"{head} {self._until(end, f'VALUE_{rule}_{position}'.upper())}"
            parts.append(element if name in required else f"({element})?")
        return " ".join(parts)

    def _json(self, schema: Mapping[str, Any]) -> str:
        """Rule for JSON that is valid under a schema."""
        if schema == ANY_OBJECT:
            self._rules.extend(rule for rule in _ANY_RULES if rule not in self._rules)
            return "any_object"
        return f"%json {json.dumps({**_bounded(schema), 'x-guidance': _SPACING})}"

    def _counted(self, text: str) -> str:
        """Text in which each number may be another one, because some families count their calls."""
        parts = re.split(r"(\d+)", text)
        return " ".join("/[0-9]{1,4}/" if part.isdigit() else self._literal(part) for part in parts if part)

    def _literal(self, text: str) -> str:
        """Text in the syntax of a grammar, with control tokens as tokens."""
        parts, position = [], 0
        for match in self._split.finditer(text):
            if match.start() > position:
                parts.append(json.dumps(text[position : match.start()]))
            parts.append(f"<[{self._controls[match[0]]}]>")
            position = match.end()
        if position < len(text):
            parts.append(json.dumps(text[position:]))
        return " ".join(parts)


def _bounded(schema: Any) -> Any:
    """Narrow a schema to replies that end: without extra properties, and with bounded numbers.

    If an object's schema leaves `additionalProperties` out, only the named properties are allowed. Numbers are bounded
    because no reader accepts 1e999. A reply that is valid under the narrowed schema is also valid under the original.
    """
    return _narrowed(schema, closes='"allOf"' not in json.dumps(schema))


def _narrowed(schema: Any, *, closes: bool) -> Any:
    if isinstance(schema, list):
        return [_narrowed(part, closes=closes) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {
        name: {key: _narrowed(each, closes=closes) for key, each in part.items()}
        if name in _BY_NAME and isinstance(part, Mapping)
        else part if name in _VALUES else _narrowed(part, closes=closes)
        for name, part in schema.items()
    }  # fmt: skip
    if inner.get("type") in ("number", "integer") and not inner.keys() & _NUMBER_BOUNDS:
        inner |= {"minimum": -_LARGEST, "maximum": _LARGEST}
    inner = _without_zero(inner)
    names = inner.get("properties")
    if closes and isinstance(names, dict) and names and not inner.keys() & _OPEN:
        required = inner.get("required", [])
        if isinstance(required, list) and set(map(str, required)) <= names.keys():
            inner["additionalProperties"] = False
    return inner


def _without_zero(schema: dict[str, Any]) -> dict[str, Any]:
    """Exclude 0 where a bound does. llguidance 1.9 allows it if the other bound is less than 1 away from it."""
    for exclusive, bound, sign in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        if schema.get(exclusive) == 0 and schema[exclusive] is not False and bound not in schema:
            schema = {bound if key == exclusive else key: value for key, value in schema.items()}
            schema[bound] = sign * _SMALLEST
    return schema


def _containing(mark: str) -> str:
    """Expression that matches texts with a mark in them."""
    return rf"/(.|\n)*{re.escape(mark).replace('/', chr(92) + '/')}(.|\n)*/"
