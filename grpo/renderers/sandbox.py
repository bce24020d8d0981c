"""Sandbox of chat templates, in which no single operation makes a very large value.

    template   {% set x = 9 ** 9 ** 10 %}    {{ "%9999999999d" % 1 }}    {{ "x" | center(10 ** 9) }}
    result     TooLarge, before anything is computed

A chat template comes from a model folder, a hub, or a client with the scope `rollout`. Templates render here as in
transformers, whose sandbox keeps them away from Python's internals. This one also refuses operations whose result would
be very large, because a call into Python's own functions cannot be interrupted. So the time limit of a rendering, which
only works between operations, ends it. Many values together may still take much memory within that time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST = 2**24
"""Largest number of characters of a text, and of entries of a list."""
LONGEST_SOURCE = 2**17
"""Characters of the longest template. Python's compiler cannot be interrupted."""
_MOST_BITS = 2**16
_WIDEST = 100_000
"""Largest width, indentation and precision."""
_WIDE = re.compile(r"\d{6}|%[^%a-zA-Z]*\*")
_COMPILED = 64
_SIZED_FILTERS = ("batch", "center", "indent", "round", "slice", "tojson", "truncate", "wordwrap")
_SIZED_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_INNER = re.compile(r"\{[^{}]*:[^{}]*\{")
"""Width of a format that is a value."""


class TooLarge(ValueError):
    """Raised if an operation of a template would make a very large value."""


def render(
    source: str,
    messages: Sequence[dict[str, Any]],
    *,
    tools: Sequence[dict[str, Any]] | None,
    generate: bool,
    tokens: Mapping[str, object],
) -> str:
    """Text of a conversation, as `apply_chat_template` of transformers renders it. `tokens` are the special tokens.

    Raises `TooLarge`, and what the template raises. It has no time limit.
    """
    from transformers.utils.chat_template_utils import _plain_template_data  # takes seconds

    return _compiled(source).render(
        # transformers puts this key first, which shows where a template prints a message as JSON
        messages=[{key: message[key] for key in ("thinking",) if key in message} | message for message in messages],
        tools=_plain_template_data(tools),
        documents=None,
        add_generation_prompt=generate,
        **_plain_template_data(tokens),
    )


def check(size: int, most: int = MOST) -> None:
    """Raise `TooLarge` above the limit."""
    if size > most:
        raise TooLarge(f"an operation would make a value of size {size}, and {most} is allowed")


class _Code(CodeGenerator):
    """Compiler that lets the environment join texts."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Join the texts of values, the operator `~`. The condition is Jinja's own."""
        markup = "context.eval_ctx.volatile" if frame.eval_ctx.volatile else str(frame.eval_ctx.autoescape)
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(f"), {markup})")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of transformers, with bounds."""

    code_generator_class = _Code
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, original: ImmutableSandboxedEnvironment) -> None:
        extensions = [type(extension) for extension in original.extensions.values()]
        super().__init__(trim_blocks=original.trim_blocks, lstrip_blocks=original.lstrip_blocks, extensions=extensions)
        self.globals.update(original.globals)
        del self.globals["lipsum"]
        self.filters.update(original.filters)
        for name in _SIZED_FILTERS:
            self.filters[name] = _with_checked(self.filters[name], _check_numbers)
        for name, check_values in (("join", _check_join), ("replace", _check_replace), ("format", _check_format)):
            self.filters[name] = _with_checked(self.filters[name], check_values)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the pieces of a block, a macro or the whole text."""
        parts = list(pieces)
        check(sum(map(len, parts)))
        return "".join(parts)

    def join_texts(self, parts: Sequence[Any], markup: bool) -> str:
        """Join the texts of values, as the operator `~` does."""
        check(sum(len(part) for part in parts if isinstance(part, (str, list, tuple))))
        joined: str = (markup_join if markup else str_join)(parts)
        return joined

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operator. Raises `TooLarge` before a very large result is made."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length()
            if operator == "**" and abs(left) > 1:
                bits = left.bit_length() * max(0, right)
            check(bits, _MOST_BITS)
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(sequence, (str, bytes, list, tuple)):
                    check(len(sequence) * times)
        elif operator == "%" and isinstance(left, (str, bytes)):
            _check_format(left.decode("latin-1") if isinstance(left, bytes) else left)
        elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            check(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method, a macro or a function."""
        text, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(text, str):
            if name in _SIZED_METHODS:
                _check_numbers(text, *args, *kwargs.values())
            if name == "replace":
                _check_replace(text, *args)
            elif name == "join" and args:
                args = (list(args[0]), *args[1:])
                _check_join(args[0], text)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """A function in place of a text's method `format` or `format_map`, None for other values."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__

        @wraps(wrapped)
        def checked(*args: Any, **named: Any) -> str:
            _check_format(text)
            if _INNER.search(text):
                _check_numbers("", *args, *named.values())
            return wrapped(*args, **named)

        return checked


def _with_checked(function: Callable[..., Any], check_values: Callable[..., None]) -> Callable[..., Any]:
    """A filter whose value and arguments are checked. Jinja passes some filters its context first."""
    is_passed = hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        value, *others = args[is_passed:]
        if not isinstance(value, (str, list, tuple, Mapping)) and isinstance(value, Iterable):
            value = list(value)
        check_values(value, *others, *named.values())
        return function(*args[:is_passed], value, *others, **named)

    return checked


def _check_numbers(value: Any, *numbers: Any) -> None:
    lines = value.count("\n") + value.count("\t") + 1 if isinstance(value, str) else 1
    for number in numbers:
        if isinstance(number, int):
            check(abs(number), _WIDEST)
            check(abs(number) * lines)


def _check_format(text: Any, *_: Any) -> None:
    if _WIDE.search(str(text)):
        raise TooLarge(f"a format has a width of more than {_WIDEST - 1}, or one that is an argument")


def _check_replace(text: Any, *values: Any) -> None:
    if len(values) > 1 and isinstance(values[1], str):
        check(len(str(text)) + str(text).count(str(values[0])) * len(values[1]))


def _check_join(parts: Any, separator: Any = "", *_: Any) -> None:
    check(sum(len(part) + len(str(separator)) for part in parts if isinstance(part, str)))


@lru_cache(maxsize=1)
def _environment() -> BoundedEnvironment:
    from transformers.utils.chat_template_utils import _compile_jinja_template  # takes seconds

    return BoundedEnvironment(_compile_jinja_template("").environment)


@lru_cache(maxsize=_COMPILED)
def _compiled(source: str) -> Template:
    """The compiled template. Templates that name other templates are refused, because there are none."""
    check(len(source), LONGEST_SOURCE)
    environment = _environment()
    parsed = environment.parse(source)
    for kind in (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends):
        if (other := parsed.find(kind)) is not None:
            raise TemplateSyntaxError("a chat template cannot include, import or extend another one", other.lineno)
    return environment.from_string(source)
