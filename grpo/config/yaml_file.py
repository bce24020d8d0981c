"""Settings from a YAML file: what it extends, what is overridden, and an error that names what cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from grpo.config.base import Settings
from grpo.config.faults import faults, shortened
from grpo.config.yaml_text import parse_yaml, read_yaml
from grpo.errors import ConfigError
from grpo.storage.credentials import holds_password, masked

S = TypeVar("S", bound=Settings)


def load_settings(path: Path, kind: type[S], overrides: tuple[str, ...] = ()) -> S:
    """Read a YAML file of settings of one kind; an override is `section.key=value`, its value read as YAML.

    A file with `extends: other.yaml` holds only what differs from that file, which lies beside it.
    Raises `ConfigError` that names the file, the key, the value and what is allowed.
    """
    return _validated(_read(path), kind, overrides, origin=str(path))


def apply_overrides(settings: S, overrides: tuple[str, ...]) -> S:
    """Settings with each `section.key=value` laid over them, as over the file that they were read from.

    Raises `ConfigError` that names the key, the value and what is allowed.
    """
    if not overrides:
        return settings
    document = settings.model_dump(mode="json", exclude_unset=True)
    return _validated(document, type(settings), overrides, origin=type(settings).__name__)


def _validated(document: dict[str, Any], kind: type[S], overrides: tuple[str, ...], *, origin: str) -> S:
    """The settings that a document with overrides describes; `origin` says in errors where it came from."""
    for override in overrides:
        _override(document, override)
    _refuse_passwords(document, origin)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        found = faults(error, document)
        raise ConfigError("\n  ".join([f"{origin}: {len(found)} setting(s) cannot be used", *found])) from error


def _refuse_passwords(document: dict[str, Any], origin: str) -> None:
    """Raise `ConfigError` for an address with a password: settings are kept in databases and reports."""
    pending: list[tuple[str, Any]] = [("", document)]
    visited: set[int] = set()
    while pending:
        place, value = pending.pop()
        if isinstance(value, str) and holds_password(value):
            raise ConfigError(
                f"{origin}: {place} {masked(value)} holds a password, which a config would pass on; set it in the "
                "environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, PGPASSWORD, the key of a model server)"
            )
        if isinstance(value, dict | list) and id(value) not in visited:  # YAML may repeat a node, or nest it in itself
            visited.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            pending.extend((f"{place}.{key}" if place else str(key), item) for key, item in items)


def _read(path: Path, *, extended_by: Path | None = None) -> dict[str, Any]:
    """A config file laid over the one that it extends; one step deep."""
    try:
        document = read_yaml(path)
    except FileNotFoundError as error:
        raise ConfigError(f"no config at {path}; the shipped ones are in data/configs") from error
    except (OSError, ValueError) as error:  # a folder, no permission, a name that no file can have
        raise ConfigError(f"config {path} cannot be read: {error}; name a YAML file") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds {type(document).__name__}, expected a mapping of settings")
    base = document.pop("extends", None)
    if base is None:
        return document
    if extended_by is not None:
        raise ConfigError(f"{extended_by} extends {path}, which extends {base}; extend that one")
    if not isinstance(base, str) or not base or Path(base).name != base:
        raise ConfigError(f"{path}: extends is {base!r}; name another file in the same folder")
    return _merged(_read(path.with_name(base), extended_by=path), document)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two mappings laid over each other, key by key; lists and values are replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def parse_override(text: str) -> tuple[str, Any]:
    """Key and value of `key=value`, the value read as YAML. Raises `ConfigError` for what is of another form."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"override {shortened(text)} is not of the form section.key=value")
    return key, parse_yaml(value, place=f"override {shortened(text)}")


def _override(document: dict[str, Any], override: str) -> None:
    """Set one dotted key; list items are addressed by their index."""
    key, value = parse_override(override)
    *parents, last = key.split(".")
    node: Any = document
    try:
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        node[int(last) if isinstance(node, list) else last] = value
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"override {shortened(override)} does not fit the config: {error}") from error
