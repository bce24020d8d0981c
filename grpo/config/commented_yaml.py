"""Commented YAML of settings: every field with its description, allowed values and default.

The descriptions are the attribute docstrings of the models.
"""

from __future__ import annotations

import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from grpo.config.base import Settings

_WIDTH = 100
_BOUNDS = ((Gt, "gt", "above"), (Ge, "ge", "at least"), (Lt, "lt", "below"), (Le, "le", "at most"))


def commented_yaml(settings: Settings) -> str:
    """Write settings as YAML with comments that loads to the same settings.

    Fields of an unset optional section, and the other variants of a union, are comments.
    """
    heading = f"{_first_paragraph(type(settings))} Comments explain the settings, or show alternatives."
    return "\n".join([*_comment(heading), "", *_section(settings)]) + "\n"


def _section(settings: Settings) -> Iterator[str]:
    """Lines of one section."""
    for name, field in type(settings).model_fields.items():
        yield from _entry(name, field, getattr(settings, name))


def _entry(name: str, field: FieldInfo, value: object) -> Iterator[str]:
    """Lines of one field: description, then value."""
    models = _models(field.annotation)
    meaning = " ".join((field.description or "").split())
    if models and isinstance(value, Settings):
        yield ""
        yield from _comment(" ".join(filter(None, (meaning, _first_paragraph(type(value))))))
        yield f"{name}:"
        yield from _indented(_section(value))
        yield from _indented(_alternatives(models, without=[type(value)]))
        return
    yield from _comment(" ".join(filter(None, (meaning, _allowed(field), _default(field, value)))))
    if models and isinstance(value, tuple) and value:
        yield f"{name}:"
        shown: list[type[Settings]] = []
        for item in value:
            kind = _comment(_first_paragraph(type(item))) if len(models) > 1 else []
            yield from _item(_values(item) if type(item) in shown else chain(kind, _section(item)))
            shown.append(type(item))
        yield from _indented(_alternatives(models, without=shown))
        return
    yield from yaml.safe_dump({name: _plain(value)}, sort_keys=False, width=10_000, allow_unicode=True).splitlines()
    yield from _indented(_alternatives(models, without=[]))


def _values(settings: Settings) -> Iterator[str]:
    """Lines of the values that differ from the defaults, without descriptions, which are given before."""
    fields = type(settings).model_fields
    changed = {
        name: value
        for name, value in settings.model_dump(mode="json").items()
        if name == "kind" or value != _plain(fields[name].get_default(call_default_factory=True))
    }
    yield from yaml.safe_dump(changed, sort_keys=False, width=10_000, allow_unicode=True).splitlines()


def _alternatives(models: tuple[type[Settings], ...], *, without: Sequence[type[Settings]]) -> Iterator[str]:
    """Fields of the other models of a union, as comments."""
    for model in models:
        if model in without:
            continue
        yield f"# Or: {_first_paragraph(model)}"
        for name, field in sorted(model.model_fields.items(), key=lambda entry: entry[0] != "kind"):
            meaning = " ".join(filter(None, (" ".join((field.description or "").split()), _allowed(field))))
            yield from textwrap.wrap(
                f"{name}: {_shown(field)}" + (f"  ({meaning})" if meaning else ""),
                _WIDTH,
                initial_indent="#   ",
                subsequent_indent="#       ",
                break_long_words=False,
            )
            yield from _indented(_indented(_alternatives(_models(field.annotation), without=[])))


def _shown(field: FieldInfo) -> str:
    """Default of a field, or its only value, or dots."""
    only = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if len(only) == 1:
        return str(only[0])
    value = field.get_default(call_default_factory=True)
    return "…" if value is PydanticUndefined else yaml.safe_dump(_plain(value), default_flow_style=True).split("\n")[0]


def _models(annotation: object) -> tuple[type[Settings], ...]:
    """Settings classes in an annotation, however nested."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return (annotation,)
    if get_origin(annotation) in (Union, types.UnionType, tuple, Annotated):
        return tuple(model for part in get_args(annotation) for model in _models(part))
    return ()


def _allowed(field: FieldInfo) -> str:
    """Allowed values of a field, by its type and bounds."""
    choices = _choices(field.annotation)
    rules = [f"One of {', '.join(map(str, choices))}." if choices else ""]
    bounds = [
        f"{word} {getattr(bound, name)}"
        for kind, name, word in _BOUNDS
        for bound in field.metadata
        if isinstance(bound, kind)
    ]
    rules.append(f"{' and '.join(bounds).capitalize()}." if bounds else "")
    rules.extend(f"At least {bound.min_length}." for bound in field.metadata if isinstance(bound, MinLen))
    return " ".join(filter(None, rules))


def _choices(annotation: object) -> tuple[object, ...]:
    """Literals of an annotation, if there is more than one."""
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        return choices if len(choices) > 1 else ()
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        return tuple(choice for part in get_args(annotation) for choice in _choices(part))
    return ()


def _default(field: FieldInfo, value: object) -> str:
    """Default, if the value differs from it."""
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "Required."
    return "" if default == value else f"Default: {yaml.safe_dump(_plain(default)).splitlines()[0]}."


def _plain(value: object) -> Any:
    """Value in plain types of YAML."""
    if isinstance(value, Settings):
        return value.model_dump(mode="json")
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _first_paragraph(model: type[Settings]) -> str:
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _indented(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}" if line else ""


def _item(lines: Iterator[str]) -> Iterator[str]:
    """Lines of a list item. The first entry gets the dash."""
    dashed = False
    for line in lines:
        starts = bool(line) and not line.startswith("#") and not dashed
        yield f"  - {line}" if starts else f"    {line}" if line and dashed else f"  {line}" if line else ""
        dashed = dashed or starts
