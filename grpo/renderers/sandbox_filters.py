"""Filters of chat templates whose results, time and memory are bounded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import GeneratorType
from typing import Any

from jinja2 import pass_context
from jinja2.filters import do_format, do_indent, do_join, do_replace, do_round, make_attrgetter
from jinja2.runtime import Context
from jinja2.utils import _PassArg

from grpo.renderers.sandbox_sizes import MOST_BITS, PART, TooLarge, bounded_list, checked, depth, spending, width

REMOVED = frozenset({"pprint", "random", "urlize", "wordwrap", "xmlattr"})
_MOST = 100_000
"""Largest number that a filter takes, as for `range`."""
_INDENT = 64
"""Longest indent and separator of `tojson`."""
_ESCAPED = 6
"""Characters of `\\u00e9`."""
_NUMERIC = frozenset({"abs", "default", "d", "filesizeformat", "float", "int", "round", "string", "sum", "max", "min"})
"""Filters that read large numbers without making anything of that size."""
_CALL = 256


def bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts what it reads and makes.

    It needs the context, so that Jinja does not compute it while it compiles. An iterator is made at once, so that it
    does not refer to a chain of others.
    """
    passed = _PassArg.from_obj(function)

    @pass_context
    @wraps(function)
    def call(context: Context, /, value: Any, *args: Any, **named: Any) -> Any:
        spent = spending()
        spent.spend(_CALL + spent.size(args) + spent.size(named))
        if name not in _NUMERIC and any(
            isinstance(part, int) and abs(part) > _MOST for part in (*args, *named.values())
        ):
            raise TooLarge(f"the filter {name} takes numbers up to {_MOST}")
        if isinstance(value, Iterator):
            value = iter(bounded_list(value))
        given = {
            _PassArg.context: context,
            _PassArg.environment: context.environment,
            _PassArg.eval_context: context.eval_ctx,
        }
        result = function(*([] if passed is None else [given[passed]]), value, *args, **named)
        return iter(bounded_list(result)) if isinstance(result, (GeneratorType, Iterator)) else checked(result)

    # `wraps` copies the mark of the function's own argument as well
    call.jinja_pass_arg = _PassArg.context  # type: ignore[attr-defined]
    return call


def divisible(value: Any, number: Any) -> bool:
    """Check that an integer is divisible by another, without the operator `%` of texts."""
    if not all(isinstance(part, (int, float)) and not _is_long(part) for part in (value, number)):
        raise TooLarge(f"divisibleby takes integers of at most {MOST_BITS} bits")
    return bool(value % number == 0)


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > MOST_BITS


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON of a value, as transformers writes it."""
    spent = spending()
    step = indent if isinstance(indent, int) else len(indent or "")
    between = [len(text) for text in separators or ()]
    if max([abs(step), *between]) > _INDENT:
        raise TooLarge(f"tojson takes indents and separators of at most {_INDENT} characters")
    size, levels = spent.size(value), depth(value)
    spent.check(_ESCAPED * size + size // PART * (levels * max(0, step) + sum(between)))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    lines, text = str(s).count("\n") + 1, width if isinstance(width, str) else " "
    spending().check(sys.getsizeof(s) + lines * (len(text) if isinstance(width, str) else max(0, width)))
    return do_indent(s, width, first, blank)


def _center(value: str, width: int = 80) -> str:
    spending().check(4 * width)
    return str(value).center(width)


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    if not isinstance(value, (int, float)) or _is_long(value) or abs(precision) > PART:
        raise TooLarge(f"round takes a number and a precision of at most {PART}")
    return do_round(value, precision, method)


@pass_context
def _sum(context: Context, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """Sum by the bounded operator, because `sum` of lists takes quadratic time in one call."""
    read = (lambda item: item) if attribute is None else make_attrgetter(context.environment, attribute)
    for value in map(read, iterable):
        if isinstance(start, str):
            raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
        start = context.environment.call_binop(context, "+", start, value)  # type: ignore[attr-defined]
    return start


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
    parts = bounded_list(value)
    spending().check(sum(map(spending().size, parts)) + width(str(d)) * len(parts))
    return do_join(context.eval_ctx, parts, d, attribute)


@pass_context
def _replace(context: Context, s: str, old: str, new: str, count: int | None = None) -> str:
    occurrences = str(s).count(str(old))
    spending().check(
        sys.getsizeof(s) + occurrences * width(str(new)) * (_ESCAPED if context.eval_ctx.autoescape else 1)
    )
    return do_replace(context.eval_ctx, s, old, new, count)


@pass_context
def _format(context: Context, value: str, *args: Any, **named: Any) -> str:
    if args and named:
        return do_format(value, *args, **named)  # raises the error
    text = value if isinstance(value, str) else str(value)
    return str(context.environment.call_binop(context, "%", text, named or args))  # type: ignore[attr-defined]


FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": _tojson, "indent": _indent, "center": _center, "round": _round, "sum": _sum, "join": _join,
    "replace": _replace, "format": _format,
}  # fmt: skip
