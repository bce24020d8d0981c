"""Base class of all settings, the conditions under which a setting is read, and valid names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationInfo,
    model_validator,
)

from grpo.storage.shipped import SCHEME, shipped_folder

S = TypeVar("S", bound="Settings")
LEAST_TEMPERATURE = 1e-5
"""Lower temperatures mean greedy decoding, as in vLLM, because logits divided by less overflow in float32."""


@dataclass(frozen=True, slots=True)
class AppliesWhen:
    """Mark of a field that is read only if `setting` has one of `values` (or is set at all, if `values` is empty)."""

    setting: str
    values: tuple[object, ...] = ()

    def reads(self, value: object) -> bool:
        """Decide by the value of the other setting."""
        return value in self.values if self.values else bool(value)

    def fault(self, value: object) -> str:
        """Reason and remedy for a field that has no effect."""
        remedy = f", or set {self.setting} to {self.values[0]}" if self.values and type(self) is AppliesWhen else ""
        condition = f"with {self.setting} {value}" if value else f"without {self.setting}"
        return f"has no effect {condition}. Leave it out{remedy}"


class IgnoredWhen(AppliesWhen):
    """Mark of a field that is ignored if `setting` has one of `values` (or is set at all, if `values` is empty)."""

    def reads(self, value: object) -> bool:
        """Decide by the value of the other setting."""
        return not super().reads(value)


class Settings(BaseModel):
    """Base of all settings: frozen, finite, unknown keys refused, docstrings of fields as descriptions.

    A field marked `AppliesWhen` or `IgnoredWhen` may differ from its default only if it is read:

        max_rounds: Annotated[int, AppliesWhen("informative_groups")] = 3
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @property
    def path_options(self) -> tuple[str, ...]:
        """Keys that have paths as values in the mappings of these settings."""
        return ()

    @model_validator(mode="after")
    def _settings_are_read(self) -> Self:
        for name, field in type(self).model_fields.items():
            if getattr(self, name) == field.get_default(call_default_factory=True):
                continue
            for mark in field.metadata:
                if isinstance(mark, AppliesWhen) and not mark.reads(value := getattr(self, mark.setting)):
                    raise ValueError(f"{name} {mark.fault(value)}")
        return self


@dataclass(frozen=True, slots=True)
class ByContent:
    """Mark of a field that holds an address: a cache identity includes its content instead of the address."""

    is_input: bool = True
    """False for a place that is written to, that grows, or that other settings stand for."""


class Override(str):
    """Text of an override. Its paths count from the working folder, not from the folder of the YAML file."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Mark of a field that says where something is computed. A cache identity leaves it out, because no result may
    depend on it.
    """


def from_config_folder(value: Any, info: ValidationInfo) -> Any:
    """Path that counts from the folder of its YAML file.

    The result is relative if it lies below the working folder, and `grpo://…` if the package ships the file.
    """
    folder: Path | None = (info.context or {}).get(FOLDER)
    if not isinstance(value, str) or isinstance(value, Override) or folder is None or _is_uri(value):
        return value
    if value.startswith(("/", "~")):
        return str(Path(value).expanduser())
    path = Path(os.path.normpath(Path.cwd() / folder / value))
    if path.is_relative_to(shipped_folder()) and path.exists():
        return f"{SCHEME}{path.relative_to(shipped_folder()).as_posix()}"
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _place_from_config_folder(value: Any, info: ValidationInfo) -> Any:
    """Path that counts from the folder of its YAML file, as a real path also if the package ships it."""
    path = from_config_folder(value, info)
    shipped = isinstance(path, str) and path.startswith(SCHEME) and path != value
    return str(shipped_folder() / path.removeprefix(SCHEME)) if shipped else path


def _model_from_config_folder(value: Any, info: ValidationInfo) -> Any:
    """Model address. If it is a path, the path counts from the folder of its YAML file."""
    if not isinstance(value, str) or isinstance(value, Override):
        return value
    scheme, separator, rest = value.rpartition("://")
    if separator and scheme not in _LOCAL_SCHEMES:
        return value
    path = from_config_folder(rest, info)
    is_path = _is_model_path(rest) or Path(path).exists()
    return f"{scheme}{separator}{path if is_path else rest}"


def _is_model_path(address: str) -> bool:
    """Return True for an address that cannot be the `org/name` of a model on the hub."""
    return address.startswith((".", "/", "~")) or address.count("/") != 1


def _is_uri(value: str) -> bool:
    return "://" in value or value.startswith("models:/")


def model_path(value: str) -> tuple[str, str] | None:
    """Scheme with `://`, or an empty text, and the path of a model address, or None if it is not a path."""
    scheme, separator, rest = value.rpartition("://")
    is_local = not separator or scheme in _LOCAL_SCHEMES
    is_path = is_local and not _is_uri(rest) and (_is_model_path(rest) or Path(rest).exists())
    return (f"{scheme}{separator}", rest) if is_path else None


def without_paths(settings: BaseModel) -> dict[str, Any]:
    """Values of settings by name, without `Placement`, and without paths, because their content stands for them."""
    keys = settings.path_options if isinstance(settings, Settings) else ()
    values: dict[str, Any] = {}
    for name, value in settings:
        marks = marks_of(type(settings), name)
        if any(isinstance(mark, ByContent | Placement) for mark in marks):
            continue
        if isinstance(value, str) and any(isinstance(mark, ModelMark) for mark in marks):
            scheme_and_path = model_path(value)
            value = value if scheme_and_path is None else scheme_and_path[0]
        elif isinstance(value, dict):
            value = {key: item for key, item in value.items() if key not in keys}
        values[name] = value
    return values


def named_inputs(settings: BaseModel) -> Iterator[str]:
    """Files and folders of fields with the mark `ByContent` that are inputs. Declared reads may be `$VARIABLES`."""
    for name, value in settings:
        marks = [mark for mark in marks_of(type(settings), name) if isinstance(mark, ByContent)]
        if marks and value is not None and all(mark.is_input for mark in marks):
            yield from value if isinstance(value, tuple) else (value,)


def named_models(settings: BaseModel) -> Iterator[str]:
    """Addresses of models in fields of the type `ModelAddress`."""
    for name, value in settings:
        if value is not None and any(isinstance(m, ModelMark) for m in marks_of(type(settings), name)):
            yield value


def with_paths_from(settings: S, folder: Path) -> S:
    """Settings with relative paths that count from `folder` instead of the working folder."""
    return _with_paths(settings, lambda path: os.path.relpath(path, folder))


def with_absolute_paths(settings: S) -> S:
    """Settings with absolute paths, which hold in every working folder."""
    return _with_paths(settings, os.path.abspath)


def _with_paths(settings: S, change: Callable[[str], str]) -> S:
    """Settings with each relative path changed. An absolute path, a URI and a `$VARIABLE` stay unchanged."""

    def changed_path(value: str) -> str:
        is_fixed = _is_uri(value) or value.startswith("$") or Path(value).is_absolute()
        return value if is_fixed else change(value)

    changes: dict[str, Any] = {}
    for name, value in settings:
        marks = marks_of(type(settings), name)
        if isinstance(value, Settings):
            changes[name] = _with_paths(value, change)
        elif isinstance(value, tuple) and value and isinstance(value[0], Settings):
            changes[name] = tuple(_with_paths(item, change) for item in value)
        elif isinstance(value, str) and any(isinstance(mark, ByContent) for mark in marks):
            changes[name] = changed_path(value)
        elif isinstance(value, str) and any(isinstance(mark, ModelMark) for mark in marks):
            path = model_path(value)
            changes[name] = value if path is None else f"{path[0]}{changed_path(path[1])}"
        elif isinstance(value, tuple) and any(isinstance(mark, ByContent) for mark in marks):
            changes[name] = tuple(map(changed_path, value))
        elif isinstance(value, dict):
            paths = {key: value[key] for key in settings.path_options if isinstance(value.get(key), str)}
            changes[name] = {**value, **{key: changed_path(path) for key, path in paths.items()}}
    changed = {name: value for name, value in changes.items() if value != getattr(settings, name)}
    return settings.model_copy(update=changed) if changed else settings


@cache
def marks_of(kind: type[BaseModel], name: str) -> tuple[object, ...]:
    """Marks of a field. The ones of an optional field, `LocalPath | None`, are inside of its annotation."""
    field = kind.model_fields[name]
    inner = (get_args(part)[1:] for part in get_args(field.annotation) if get_origin(part) is Annotated)
    return (*field.metadata, *chain.from_iterable(inner))


class ModelMark:
    """Mark of a field that names a model."""


FOLDER = "folder"
"""Key of the folder of the YAML file in the context of a validation."""
_LOCAL_SCHEMES = ("stub", "vllm")
"""Schemes of model addresses that are followed by a path."""
LocalPath = Annotated[str, BeforeValidator(from_config_folder), ByContent()]
"""File or folder, relative to the folder of the YAML file. `grpo://scenarios/support_desk.jsonl` is a shipped file."""
LocalPlace = Annotated[str, BeforeValidator(_place_from_config_folder), ByContent(is_input=False)]
"""File or folder that is written to, is imported from or grows, relative to the folder of the YAML file."""
ModelAddress = Annotated[str, BeforeValidator(_model_from_config_folder), ModelMark()]
"""Model, see `grpo.policy.catalog`. A relative path counts from the folder of the YAML file."""

HOME_FOLDERS = frozenset(
    {"artifacts", "conversations", "ingest", "judge", "locks", "mlartifacts", "models", "prefect", "served", "services"}
)
"""Folders of a home that are not the report of a run."""
_HOME_FILE = re.compile(r".+\.(db|json|lock)(-\w+)?")
"""Databases, records and locks of a home, such as mlflow.db, mlflow.db-wal, keys.json and stores.lock."""


def _not_a_place_of_the_home(name: str) -> str:
    if name.lower() in HOME_FOLDERS:
        raise ValueError(f"{name} is the name of a folder that GRPO_HOME keeps for itself. Choose another name")
    if _HOME_FILE.fullmatch(name.lower()):
        raise ValueError(f"{name} ends in .db, .json or .lock, as files of GRPO_HOME do. Choose another name")
    return name


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
"""Name of a folder, a run or a model: letters, digits, `_`, `.` and `-`, at most 100."""
RunName = Annotated[Name, AfterValidator(_not_a_place_of_the_home)]
"""`Name` of a run. The home has a folder of this name for its report, so nothing else in the home may have it."""
