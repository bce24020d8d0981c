"""Sandbox of chat templates, in which no single operation takes long or much memory.

    template   {% set x = 9 ** 9 ** 10 %}    {{ "%9999999999d" % 1 }}    {{ "x" | center(10 ** 9) }}
    operation  call_binop                    call_binop                  a bounded filter
    result     TooLarge, before it is computed

A chat template comes from a model folder, a hub, or a client with the scope `rollout`. The sandbox of transformers
keeps it away from Python's internals, and this one also bounds operators, filters, methods, literals and printed text.
So the time limit of a rendering, which only works between operations, always works.

Only methods of the builtin types that are listed here may be called. The filters `pprint`, `random`, `urlize`,
`wordwrap` and `xmlattr` and the function `lipsum` do not exist, because the same conversation must always render alike,
or because one call of them may take minutes.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, update_wrapper
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter, safe_range
from markupsafe import Markup

from grpo.renderers.sandbox_filters import FILTERS, REMOVED, bounded, divisible
from grpo.renderers.sandbox_sizes import (
    MOST_BITS,
    PART,
    Pieces,
    Spending,
    TooLarge,
    bounded_list,
    checked,
    concat,
    spending,
    spends,
    width,
)

LONGEST_SOURCE = 2**17
"""Characters of the longest template. Python's compiler cannot be interrupted."""
_COMPILED = 64
_LARGEST_BOUND = 2**32
_DIGITS, _FORM = re.compile(r"\d+"), re.compile(r"[#0\- +*\d.]*")
_WIDEST = 4096
"""Largest width or precision in a format."""
_LONGEST_FORM = 256
_CALL = 2048
"""Size that a call counts as, for the objects that it makes."""
_QUADRATIC = 2**26
"""Largest product of the lengths of a text and the argument of one of the methods `_SLOW`, which compare all pairs."""
_SLOW = frozenset({"rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip"})
_TEXT = frozenset(
    [
        "capitalize",
        "casefold",
        "center",
        "count",
        "endswith",
        "expandtabs",
        "find",
        "format",
        "format_map",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "ljust",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rjust",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
        "zfill",
        "unescape",
        "striptags",
    ]
)
_METHODS: dict[type, frozenset[str]] = {
    str: _TEXT,
    bytes: frozenset(),
    bool: frozenset(),
    int: frozenset({"bit_length", "is_integer", "real", "imag", "numerator", "denominator"}),
    float: frozenset({"is_integer", "real", "imag"}),
    list: frozenset({"count", "index", "copy"}),
    tuple: frozenset({"count", "index", "grouper", "list"}),
    Mapping: frozenset({"get", "items", "keys", "values", "copy"}),
    set: frozenset(),
    frozenset: frozenset(),
    range: frozenset({"start", "stop", "step", "count", "index"}),
}
"""Methods and attributes of the builtin types that a template may read. They change nothing, and their results are at
most a few times as large as the value, or `_check_call` bounds them."""


def render(
    source: str,
    messages: Sequence[dict[str, Any]],
    *,
    tools: Sequence[dict[str, Any]] | None,
    generate: bool,
    tokens: Mapping[str, object],
) -> str:
    """Text of a conversation, as `apply_chat_template` of transformers renders it. `tokens` are the special tokens.

    Raises `TooLarge` if an operation of the template, all its values or its text would be too large. It has no time
    limit.
    """
    if len(source) > LONGEST_SOURCE:
        raise TooLarge(f"the template has {len(source)} characters, and {LONGEST_SOURCE} are allowed")
    from transformers.utils.chat_template_utils import _plain_template_data  # takes seconds

    allowed = Spending(messages, tools or ())
    with spends(allowed):
        text = _compiled(source).render(
            # transformers puts this key first, which shows where a template prints a message as JSON
            messages=[{key: message[key] for key in ("thinking",) if key in message} | message for message in messages],
            tools=_plain_template_data(tools),
            documents=None,
            add_generation_prompt=generate,
            **_plain_template_data(tokens),
        )
    if len(text) > allowed.output:
        raise TooLarge(f"the rendered text has {len(text)} characters, and {allowed.output} are allowed")
    return text


class _BoundedCode(CodeGenerator):
    """Compiler that counts literals, slices, joined texts and the pieces of a block."""

    def buffer(self, frame: Frame) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.pieces()")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        markup = "context.eval_ctx.autoescape" if frame.eval_ctx.volatile else str(frame.eval_ctx.autoescape)
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(f"), {markup})")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._checked(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._checked(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._checked(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._checked(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def _checked(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.checked(")
        visit(node, frame)
        self.write(")")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox whose operations are bounded."""

    code_generator_class = _BoundedCode
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    concat = staticmethod(concat)
    checked = staticmethod(checked)
    pieces = Pieces

    def __init__(self, original: ImmutableSandboxedEnvironment) -> None:
        super().__init__(
            trim_blocks=original.trim_blocks,
            lstrip_blocks=original.lstrip_blocks,
            extensions=[type(extension) for extension in original.extensions.values()],
        )
        self.globals.update(original.globals)
        self.globals["namespace"] = _opaque(original.globals["namespace"])
        self.globals["range"] = _range
        del self.globals["lipsum"]
        filters = {**original.filters, **FILTERS}
        self.filters = {name: bounded(name, filters[name]) for name in filters.keys() - REMOVED}
        self.tests["divisibleby"] = divisible

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """True if the template may read this attribute."""
        allowed = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), None)
        return super().is_safe_attribute(obj, attr, value) and (allowed is None or attr in allowed)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operator. Raises `TooLarge` before the result is made."""
        return compute(operator, left, right)

    def join_texts(self, parts: Sequence[Any], markup: bool) -> str:
        """Join the texts of values, as the operator `~` does."""
        spent = spending()
        spent.check(sum(map(spent.size, parts)))
        text: str = (markup_join if markup else str_join)(parts)
        spent.spend(sys.getsizeof(text))
        return text

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method, a macro or a function."""
        spent = spending()
        spent.spend(_CALL + spent.size(args) + spent.size(kwargs))
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(__obj, (BuiltinMethodType, MethodType)) and isinstance(owner, str):
            args = _check_call(owner, str(name), args, kwargs)
        return checked(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """A bounded function in place of a text's method `format` or `format_map`, None for other values."""
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__
        formatter = _EscapingFormatter(self, escape=text.escape) if isinstance(text, Markup) else _TextFormatter(self)

        def format_text(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                (kwargs,), args = args, ()
            filled: str = type(text)(formatter.vformat(text, args, kwargs))
            return filled

        return update_wrapper(format_text, value)


def compute(symbol: str, left: Any, right: Any) -> Any:
    """Result of a binary operator. Raises `TooLarge` before a large result is made."""
    spent = spending()
    if isinstance(left, int) and isinstance(right, int):
        longest = max(left.bit_length(), right.bit_length())
        if symbol == "**" and right > 0:
            longest = max(longest, left.bit_length() * right if abs(left) > 1 else 1)
        if longest > MOST_BITS:
            raise TooLarge(f"{symbol} would read or make an integer of more than {MOST_BITS} bits")
        return _OPERATORS[symbol](left, right)
    if symbol == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(sequence, (str, bytes, list, tuple)):
                spent.check(max(0, times) * (width(sequence) if isinstance(sequence, str) else spent.size(sequence)))
    if symbol == "%" and isinstance(left, (str, bytes)):
        if isinstance(left, bytes) or any("*" in form for form in _forms(left)):
            raise TooLarge("a format has the width *")
        digits = [int(digits) for form in _forms(left) for digits in _DIGITS.findall(form[:_LONGEST_FORM])]
        if any(len(form) > _LONGEST_FORM for form in _forms(left)):
            raise TooLarge("a format has too many digits")
        if max(digits, default=0) > _WIDEST:
            raise TooLarge(f"a format has a width of more than {_WIDEST}")
        spent.check(len(left) + sum(digits) + left.count("%") * spent.size(right))
    total = None
    if symbol == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        total = spent.size(left) + spent.size(right)
        spent.check(total)
    result = _OPERATORS[symbol](left, right)
    if total is not None and isinstance(result, list):
        spent.spend(total)
        spent.remember(result, total)
        return result
    return checked(result)


def _forms(text: str) -> list[str]:
    """Flags, width and precision of the conversions of a format. Names in brackets may have brackets inside."""
    forms, end = [], 0
    while (start := text.find("%", end)) >= 0:
        end, level = start + 1, 0
        while end < len(text) and (level or text[end] == "("):
            level += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        form = _FORM.match(text, end)
        assert form is not None
        forms.append(form[0])
        end = form.end() + 1
    return forms


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "**": operator.pow, "%": operator.mod,
}  # fmt: skip


def _check_call(text: str, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments of a method of a text. Raises `TooLarge` if the result would be too large or take too long."""
    spent, length = spending(), sys.getsizeof(text)
    numbers = [value for value in (*args, *named.values()) if isinstance(value, int)]
    texts = [value for value in (*args, *named.values()) if isinstance(value, str)]
    if name in ("center", "ljust", "rjust", "zfill"):
        spent.check(4 * max(numbers, default=0))
    elif name == "expandtabs":
        spent.check(length + 4 * text.count("\t") * max(numbers, default=8))
    elif name == "replace" and len(texts) > 1:
        spent.check(length + text.count(texts[0]) * width(texts[1]))
    elif name == "join" and args:
        parts = bounded_list(args[0])
        spent.check(sum(map(spent.size, parts)) + width(text) * len(parts))
        return parts, *args[1:]
    elif name in ("rfind", "rindex", "rsplit", "rpartition") or name in ("strip", "lstrip", "rstrip"):
        if len(text) * max(map(len, texts), default=1) > _QUADRATIC:
            raise TooLarge(f"{name} would take too long")
    elif name in ("startswith", "endswith"):
        pass
    return args


class _Bounded(SandboxedFormatter):
    """Formatter that bounds widths and the text."""

    total = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        if len(format_spec) > _LONGEST_FORM or any(int(digits) > _WIDEST for digits in _DIGITS.findall(format_spec)):
            raise TooLarge(f"a format has a width of more than {_WIDEST}")
        text = super().format_field(value, format_spec)
        self.total += PART + sys.getsizeof(text)
        spending().check(self.total)
        spending().spend(sys.getsizeof(text))
        return text


class _TextFormatter(_Bounded):
    """Formatter of a text."""


class _EscapingFormatter(_Bounded, SandboxedEscapeFormatter):
    """Formatter of a text with escapes."""


def _opaque(namespace: Any) -> type:
    """Kind of namespace that prints no values, because namespaces in namespaces may print for years."""
    return type("namespace", (namespace,), {"__repr__": lambda self: "<namespace>"})


def _range(*bounds: int) -> range:
    """A short range of small numbers. Large ones may be chosen such that a dictionary of them takes minutes."""
    if any(abs(bound) > _LARGEST_BOUND for bound in bounds):
        raise TooLarge(f"range takes numbers up to {_LARGEST_BOUND}")
    return safe_range(*bounds)


@lru_cache(maxsize=1)
def _environment() -> BoundedEnvironment:
    from transformers.utils.chat_template_utils import _compile_jinja_template  # takes seconds

    return BoundedEnvironment(_compile_jinja_template("").environment)


@lru_cache(maxsize=_COMPILED)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)
