"""YAML of bounded size: a text of a few lines that would fill the memory or a core for minutes is refused at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

from grpo.config.faults import shortened
from grpo.errors import ConfigError

MOST_BYTES = 1 << 20
_MOST_VALUES = 20_000
"""Values and keys, those that an alias repeats counted again."""
_MOST_LEVELS = 50


def read_yaml(path: Path) -> Any:
    """The document in a file of at most 1 MiB. Raises `OSError`, and `ConfigError` as `parse_yaml` does."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ConfigError(f"{path} has {size:,} bytes; at most {MOST_BYTES:,} are read")
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), place=str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save the file in UTF-8") from error


def parse_yaml(text: str, *, place: str) -> Any:
    """The document that a text holds; `place` names it in errors.

    Raises `ConfigError` for what is not plain YAML, a key that stands twice in one mapping, more than 20,000 values
    after aliases are followed, more than 50 levels, and an alias inside of what it stands for.
    """
    try:
        return yaml.load(text, Loader=_BoundedLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{place}{at}: cannot be read as YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a date or number that Python does not have
        reason = " ".join(str(error).split())
        raise ConfigError(f"{place}: cannot be read as YAML: {reason}") from error


class _BoundedLoader(yaml.SafeLoader):
    """A safe loader that counts what it composes, before any object is made of it."""

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
            raise ComposerError(None, None, "an alias inside of what it stands for", mark)
        if not repeated:
            self._sizes[id(node)] = 1 + sum(self._sizes[id(child)] for child in _children(node))
        self._composed += self._sizes[id(node)] if repeated else 1
        if max(self._composed, self._sizes[id(node)]) > _MOST_VALUES:
            raise ComposerError(None, None, f"more than {_MOST_VALUES:,} values, aliases followed", mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping whose keys differ."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in keys:
                raise ComposerError(None, None, f"key {shortened(key.value)} stands twice", key.start_mark)
            keys.add((key.tag, key.value))
        return node


def _children(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """The nodes directly below one."""
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        yield from chain.from_iterable(node.value)
