"""Code identity: digests of the project's sources and packages, and of the user's code and files that a config names.

reward politeness of an installed package    its modules, the package's version, the files that it declares
environment shop.environment:Shop            its modules
source shop.scenarios:rows                   its modules
simulated user stub://replies.yaml           that file
reward neural, options.model                 that folder
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.artifacts import local_path
from grpo.config.base import named_inputs, named_models
from grpo.config.dpo import ServedPairs
from grpo.config.environments import PackageSettings, VerifiersSettings
from grpo.config.gates import SafetyGate
from grpo.config.pipeline import PipelineConfig, PolicySettings
from grpo.config.python_object import VARIABLE, UserObject
from grpo.config.rewards import RewardComponent
from grpo.config.scenarios import VerifiersSource
from grpo.config.sft import ServedDemonstrations
from grpo.errors import ConfigError, install_command
from grpo.identity.user_code import module_files, source_texts, user_code_digests, user_modules
from grpo.policy.catalog import STUB, VLLM, is_weights
from grpo.policy.weights.sources import model_identity
from grpo.reads.names import ABSENT, variable_digest
from grpo.rewards.catalog import reward_files
from grpo.rewards.judge.rubrics import RUBRICS
from grpo.rewards.learned.safety import SHIPPED
from grpo.scenarios.readers.served import served_digest
from grpo.scenarios.sources import SOURCES
from grpo.storage.files import stamped_digest
from grpo.storage.shipped import package_folder, shipped_folder

_REFERRING = (RewardComponent, UserObject, VerifiersSettings, VerifiersSource)
"""Settings with a `reference` to code."""
_SOURCES = tuple(SOURCES)
"""Settings of sources. `content_hash` digests their files, and stages take it as `content`."""
LOG_PREFIX = "log "
"""Prefix of the names under which serving logs are in the digests."""
NUMERIC_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "trl", "peft", "accelerate")


@functools.cache
def source_digest() -> str:
    """Digest of the sources of `grpo` and the stages, and of the rubrics. It is the same in a checkout and a wheel."""
    digest, shipped = hashlib.sha256(), shipped_folder()
    for root in (*(package_folder(name) for name in ("grpo", "grpo_tasks")), RUBRICS):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".j2", ".yaml") and (root == RUBRICS or not path.is_relative_to(shipped)):
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def package_versions() -> dict[str, str]:
    """Versions of the packages on which numerical results depend."""
    return {package: importlib.metadata.version(package) for package in NUMERIC_PACKAGES}


@functools.cache
def code_digest() -> str:
    """Digest of the sources and the numeric packages. If it changes, all stages are computed again."""
    digest = hashlib.sha256(source_digest().encode())
    for package, version in package_versions().items():
        digest.update(f"{package}=={version}".encode())
    return digest.hexdigest()[:16]


def commit() -> str | None:
    """Git commit of the project, with `+` if tracked files were changed. None if Git does not track this file.

    The package may be installed in an environment that lies in a repository of the user's own.
    """

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    head = git("rev-parse", "HEAD")
    return f"{head}+" if head and git("status", "--porcelain", "--untracked-files=no") else head


def user_code_files(values: Iterable[Any]) -> dict[str, Path]:
    """Source files of the user's modules that these settings name, by their path below an import folder."""
    references = {reference for part in _parts(values) if (reference := _reference(part)) is not None}
    return {name: path for reference in sorted(references) for name, path in module_files(reference).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """The user's code that a stage runs."""

    references: tuple[str, ...]
    """`module:name` of the objects."""
    modules: tuple[str, ...]
    """All modules that they import."""
    texts: frozenset[str]
    """Texts in their options and sources, which may name files."""
    declares: bool
    """True if settings declare reads."""


def executed_code(values: Iterable[Any]) -> UserCode | None:
    """The user's code that these settings run, or None. A `PipelineConfig` is left out, because it is only recorded."""
    settings = [value for value in values if not isinstance(value, PipelineConfig)]
    parts = [part for part in _parts(settings) if _reference(part) is not None]
    if not parts:
        return None
    references = sorted({str(_reference(part)) for part in parts})
    texts = {text for part in parts for name in ("options", "args") for text in _texts(getattr(part, name, None))}
    return UserCode(
        references=tuple(references),
        modules=tuple(sorted({module for reference in references for module in user_modules(reference)})),
        texts=frozenset(texts.union(*map(source_texts, references))),
        declares=any(getattr(part, "reads", ()) for part in parts),
    )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in options, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def external_digests(values: Iterable[Any]) -> dict[str, str]:
    """Digests of the user's modules and files that these settings name.

    Raises `ConfigError` if a module or file is missing.
    """
    identity: dict[str, str] = {}
    for part in _parts(values):
        if (reference := _reference(part)) is not None:
            identity |= {f"{reference}, {name}": digest for name, digest in user_code_digests(reference).items()}
        if isinstance(part, PackageSettings):
            identity |= {f"package {package}": _version(package, part.extra) for package in part.packages}
        identity |= {name: digest() for name, digest in _named_contents(part)}
        for variable in _variables(part):
            identity[f"variable {variable}"] = variable_digest(variable, os.environ.get(variable)) or ABSENT
    return dict(sorted(identity.items()))


def content_names(values: Iterable[Any]) -> list[str]:
    """Names of the files, logs and models in `external_digests`, in the order in which these settings name them."""
    return [name for part in _parts(values) for name, _ in _named_contents(part)]


def _named_contents(part: BaseModel) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name of each file, log and model that these settings name, and the function that digests it."""
    for path in _files(part):
        yield f"file {_shown(path)}", functools.partial(_digest, path, part)
    if isinstance(part, (ServedDemonstrations, ServedPairs)):
        yield f"{LOG_PREFIX}{_shown(local_path(part.path))}", functools.partial(served_digest, part)
    for model in _models(part):
        yield f"model {model if '://' in model else _shown(Path(model))}", functools.partial(model_identity, model)


def _version(package: str, extra: str) -> str:
    """Version of a distribution that an extra installs."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"package {package} is not installed. Call {install_command(extra)}") from None


def _parts(values: Iterable[Any]) -> Iterator[BaseModel]:
    """Yield the settings objects in these values, at any depth."""
    for value in values:
        if isinstance(value, BaseModel):
            yield value
            yield from _parts(item for _, item in value)
        elif isinstance(value, (list, tuple)):
            yield from _parts(value)


def _reference(part: BaseModel) -> str | None:
    """Return `module:name` of the user's object in these settings, or None."""
    return part.reference if isinstance(part, _REFERRING) else None


def _files(part: BaseModel) -> Iterator[Path]:
    """Yield the files and folders that these settings declare."""
    if not isinstance(part, _SOURCES):
        yield from (local_path(name) for name in named_inputs(part) if not name.startswith(VARIABLE))
        if not isinstance(part, PolicySettings):  # stages take its content as `content`
            scripts = (model for model in named_models(part) if model.startswith(f"{STUB}://"))
            yield from (Path(model.partition("://")[2]) for model in scripts)
    elif isinstance(part, UserObject):
        yield from (local_path(name) for name in part.reads if not name.startswith(VARIABLE))
    if isinstance(part, RewardComponent):
        yield from (local_path(str(path)) for path in reward_files(part))
    elif isinstance(part, SafetyGate) and part.model is None:
        yield SHIPPED


def _variables(part: BaseModel) -> Iterator[str]:
    """Yield the environment variables that these settings declare."""
    if isinstance(part, (UserObject, RewardComponent)):
        yield from (name.removeprefix(VARIABLE) for name in part.reads if name.startswith(VARIABLE))


def _models(part: BaseModel) -> Iterator[str]:
    """Yield the addresses of weights that these settings name, except the policy's, which stages take as `content`."""
    if not isinstance(part, PolicySettings):
        yield from filter(is_weights, (model.removeprefix(f"{VLLM}://") for model in named_models(part)))


def _shown(path: Path) -> str:
    """Path as in the config. If it is an absolute path in the project, it is made relative to the project's root."""
    project = Path(__file__).resolve().parents[2]
    return str(path.relative_to(project)) if path.is_absolute() and path.is_relative_to(project) else str(path)


def _digest(path: Path, part: BaseModel) -> str:
    """Digest of a file or folder that settings name."""
    try:
        return stamped_digest(path)
    except OSError as error:
        name = getattr(part, "kind", type(part).__name__)
        raise ConfigError(f"{path}, which {name} names, cannot be read: {error.strerror}. Correct its path") from error
