"""Read settings from YAML of bounded size, with overrides, and describe what cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.composer import ComposerError

from grpo.config.base import FOLDER, Override, Settings
from grpo.errors import ConfigError
from grpo.storage.credentials import holds_password, masked
from grpo.storage.shipped import local_file

S = TypeVar("S", bound=Settings)

MOST_BYTES = 1 << 20
_MOST_VALUES = 20_000
"""Most values and keys. A value that an alias repeats counts again."""
_MOST_LEVELS = 50
_EXPECTED = "Input should be "
_FEW = 12  # fields that an error names if none is near
_LONGEST = 80  # characters of a value that is shown
_LONGEST_WORD = 1000  # characters of a word of a message, which may be a value


def load_settings(
    path: str | Path, kind: type[S], overrides: tuple[str, ...] = (), *, overrides_in_config: bool = False
) -> S:
    """Read a YAML file of settings, or a shipped one, `grpo://configs/quickstart.yaml`.

    An override is `section.key=value`, with the value in YAML.

    Relative paths in the file count from its folder. Paths in overrides count from the working folder, or from the
    file's folder if `overrides_in_config` is True, because a config holds the overrides. If a file has
    `extends: other.yaml`, it holds only the differences from that file in the same folder.
    Raises `ConfigError` with the file, the key, the value and what is allowed.
    """
    path = local_file(path)
    document = _read(path)
    for override in overrides:
        _override(document, override, counts_from_config=overrides_in_config)
    return _validated(document, kind, origin=str(path), folder=path.parent)


def apply_overrides(settings: S, overrides: tuple[str, ...]) -> S:
    """Apply overrides `section.key=value` to settings, as `load_settings` does to a file.

    Raises `ConfigError` with the key, the value and what is allowed.
    """
    if not overrides:
        return settings
    document = settings.model_dump(mode="json", exclude_unset=True)
    for override in overrides:
        _override(document, override)
    return _validated(document, type(settings), origin=type(settings).__name__)


def _validated(document: dict[str, Any], kind: type[S], *, origin: str, folder: Path | None = None) -> S:
    """Validate a document from a folder. Errors name its `origin`."""
    _refuse_passwords(document, origin)
    try:
        return kind.model_validate(document, context={FOLDER: folder})
    except ValidationError as error:
        lines = describe_errors(error, kind, document)
        raise ConfigError("\n  ".join([f"{origin}: {len(lines)} setting(s) cannot be used", *lines])) from error


def _refuse_passwords(document: dict[str, Any], origin: str) -> None:
    """Raise `ConfigError` for an address with a password, because databases and reports store the settings."""
    pending: list[tuple[str, Any]] = [("", document)]
    visited: set[int] = set()
    while pending:
        place, value = pending.pop()
        if isinstance(value, str) and holds_password(value):
            raise ConfigError(
                f"{origin}: {place} {masked(value)} holds a password, which would be stored with the config. Set it in "
                "the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, PGPASSWORD, the key of a model server)"
            )
        if isinstance(value, dict | list) and id(value) not in visited:  # YAML may repeat a node, or nest it in itself
            visited.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            pending.extend((f"{place}.{key}" if place else str(key), item) for key, item in items)


def _read(path: Path, *, extended_by: Path | None = None) -> dict[str, Any]:
    """Read a config file and merge it over the file that it extends, one level deep."""
    try:
        document = read_yaml(path)
    except FileNotFoundError as error:
        raise ConfigError(f"no config at {path}. Call `grpo init` to write one") from error
    except (OSError, ValueError) as error:  # a folder, no permission, a name that no file can have
        raise ConfigError(f"config {path} cannot be read: {error}. Name a YAML file") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds {type(document).__name__}, expected a mapping of settings")
    base = document.pop("extends", None)
    if base is None:
        return document
    if extended_by is not None:
        raise ConfigError(
            f"{extended_by} extends {path}, which itself extends {base}. Only one level is allowed: extend {base}, or "
            "a config that extends none"
        )
    if not isinstance(base, str) or not base or Path(base).name != base:
        raise ConfigError(
            f"{path}: extends is {base!r}, which is not the name of a file. Name another file in the same folder"
        )
    return _merged(_read(path.with_name(base), extended_by=path), document)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two mappings key by key. Lists and values of `above` replace the ones of `below`."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `key=value`, with the value in YAML. Raises `ConfigError` for any other form."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"override {shortened(masked(text))} is not of the form section.key=value")
    return key, parse_yaml(value, place=f"override {shortened(masked(text))}")


def _override(document: dict[str, Any], override: str, *, counts_from_config: bool = False) -> None:
    """Set one dotted key. List items are addressed by their index."""
    key, value = parse_override(override)
    value = value if counts_from_config else _marked(value)
    *parents, last = key.split(".")
    node: Any = document
    try:
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        node[int(last) if isinstance(node, list) else last] = value
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"override {shortened(masked(override))} does not fit the config: {error}") from error


def _marked(value: Any) -> Any:
    """Value of an override with its texts marked, so that their paths count from the working folder."""
    if isinstance(value, str):
        return Override(value)
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}
    return [_marked(item) for item in value] if isinstance(value, list) else value


def describe_errors(
    error: ValidationError, kind: type[BaseModel], document: object, *, secret: bool = False
) -> list[str]:
    """Describe the validation error of a document of a kind, one line per place.

    A line has the place, the rule and the value, unless the document is secret. For an unknown key, it names the field
    with the nearest name.

    pydantic names the members of a union in its places, and adds errors that follow from others: a list without a valid
    item is also too short, and every member of a union is reported. Here

        scenarios.sources.0.path: Field required

    is the only line, and the members of a union are alternatives on one line.
    """
    places: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for problem in error.errors(include_url=False):
        places.setdefault(_place(problem, document), []).append(problem)
    deepest = {place: problems for place, problems in places.items() if not _explained(place, places)}
    return [_line(place, problems, kind, secret=secret) for place, problems in deepest.items()]


def _place(problem: ErrorDetails, document: object) -> tuple[str, ...]:
    """Location of an error in the document, without the names of union members."""
    place: list[str] = []
    node: Any = document
    for part in problem["loc"]:
        if _has(node, part):
            node = node[part]
        elif problem["type"] != "missing" or part != problem["loc"][-1]:
            continue
        place.append(str(part))
    return tuple(place)


def _has(node: object, part: int | str) -> bool:
    """Check for a key or index in a part of the document."""
    if isinstance(node, dict):
        return part in node
    return isinstance(node, (list, tuple)) and isinstance(part, int) and part < len(node)


def _explained(place: tuple[str, ...], places: dict[tuple[str, ...], list[ErrorDetails]]) -> bool:
    """Return True if there is an error further down, because it causes the errors at this place."""
    return any(len(other) > len(place) and other[: len(place)] == place for other in places)


def _line(place: tuple[str, ...], problems: list[ErrorDetails], kind: type[BaseModel], *, secret: bool) -> str:
    messages = list(dict.fromkeys(problem["msg"].removeprefix("Value error, ") for problem in problems))
    first, *others = messages
    rule = ", or ".join([first, *(message.removeprefix(_EXPECTED) for message in others)])
    rule = " ".join(word if len(word) <= _LONGEST_WORD else f"{word[:_LONGEST]}…" for word in rule.split(" "))
    value = problems[0]["input"]
    hidden = secret or isinstance(value, dict) or problems[0]["type"] == "missing"
    shown = "" if hidden else f" (got {shortened(value)})"
    hint = _hint([_fields(problem, kind) for problem in problems if problem["type"] == "extra_forbidden"], place)
    return f"{'.'.join(place) or 'settings in conflict'}: {rule}{hint}{shown}"


def _hint(known: list[set[str]], place: tuple[str, ...]) -> str:
    """Sentence with the field that is nearest to an unknown key. If none is near, all fields are named, if few."""
    near = dict.fromkeys(name for names in known for name in get_close_matches(place[-1], sorted(names), n=1))
    if near:
        return f". Did you mean {' or '.join(near)}?"
    names = set().union(*known)
    return f". The settings here are {', '.join(sorted(names))}" if 0 < len(names) <= _FEW else ""


def _fields(problem: ErrorDetails, kind: type[BaseModel]) -> set[str]:
    """Names of the fields that may stand in the place of an unknown key."""
    models = [kind]
    for part in problem["loc"][:-1]:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if fields:
            models = [model for field in fields for model in _models(field.annotation)]
        else:  # an index, the key of a mapping, or the member of a union by its kind or class
            models = [model for model in models if part in _labels(model)] or models
    return {name for model in models for name in model.model_fields}


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the settings classes in a type, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _labels(model: type[BaseModel]) -> tuple[object, ...]:
    """Names of a member of a union in the location of an error."""
    return (model.__name__, *(get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()))


def shortened(value: object) -> str:
    """First characters of the repr of a value."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def read_yaml(path: Path) -> Any:
    """Read a YAML file of up to 1 MiB. Raises `OSError`, and `ConfigError` if it is larger or as `parse_yaml` does."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ConfigError(f"{path} has {size:,} bytes, but at most {MOST_BYTES:,} are read")
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), place=str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8. Save the file in UTF-8") from error


def parse_yaml(text: str, *, place: str) -> Any:
    """Parse YAML. Errors name it by its `place`.

    The size is bounded, because a text of a few lines can expand to more than memory holds. Raises `ConfigError` for
    invalid YAML, a duplicate key, more than 20,000 values after aliases are followed, more than 50 levels, and a
    recursive alias.
    """
    try:
        return yaml.load(text, Loader=_BoundedLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{place}{at}: cannot be read as YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a date or number outside of Python's range
        reason = " ".join(str(error).split())
        raise ConfigError(f"{place}: cannot be read as YAML: {reason}") from error


class _BoundedLoader(yaml.SafeLoader):
    """Safe loader that counts nodes before any object is built."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[int, int] = {}
        self._composed = 0
        self._level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one node, within the bounds."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._level == _MOST_LEVELS:
            raise ComposerError(None, None, f"more than {_MOST_LEVELS} levels", mark)
        repeated = self.check_event(yaml.AliasEvent)
        self._level += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._level -= 1
        if repeated and id(node) not in self._sizes:
            raise ComposerError(None, None, "an alias inside of the value that it repeats", mark)
        if not repeated:
            self._sizes[id(node)] = 1 + sum(self._sizes[id(child)] for child in _children(node))
        self._composed += self._sizes[id(node)] if repeated else 1
        if max(self._composed, self._sizes[id(node)]) > _MOST_VALUES:
            raise ComposerError(None, None, f"more than {_MOST_VALUES:,} values, aliases followed", mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping without duplicate keys."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in keys:
                raise ComposerError(None, None, f"key {shortened(key.value)} is given twice", key.start_mark)
            keys.add((key.tag, key.value))
        return node


def _children(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Child nodes."""
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        yield from chain.from_iterable(node.value)
