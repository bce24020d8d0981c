"""Identity of the user's code: digests of its modules, versions of the distributions that it imports.

    shop.rewards:Politeness imports shop.words and the package textstat
        module shop            sha256 of shop/__init__.py
        module shop.rewards    sha256 of shop/rewards.py
        module shop.words      sha256 of shop/words.py
        package textstat       0.7.4

Imports are followed in the sources without running them. Not covered: a module imported by a computed name; a stage
records it when it is opened (`grpo.identity.file_reads`).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from grpo.errors import ConfigError

_PROJECT = frozenset({"grpo", "grpo_tasks", "grpo_flows"})
"""Packages whose sources `grpo.identity.code` covers."""
_INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")})


@functools.cache
def user_code_digests(reference: str) -> Mapping[str, str]:
    """Digests of all modules that `package.module:name` imports, and versions of the imported packages.

    Cached in a process, whose imported modules do not change with the files. Raises `ConfigError` for a missing module.
    """
    name = reference.partition(":")[0]
    if _spec(name) is None:
        raise ConfigError(
            f"{reference}: module {name!r} was not found; install its package, or put its folder on PYTHONPATH"
        )
    identity: dict[str, str] = {}
    own = name.partition(".")[0]
    _add_distribution(identity, own)
    waiting, seen = [name], set()
    while waiting:
        module = waiting.pop()
        if module in seen or _is_standard(module):
            continue
        seen.add(module)
        if (spec := _spec(module)) is None:
            continue
        top = module.partition(".")[0]
        if top != own and _is_installed(spec):
            _add_distribution(identity, top)
            continue
        waiting.extend(_parents(module))
        if spec.origin is None or not Path(spec.origin).is_file():
            continue  # a namespace package or a built-in module
        source = Path(spec.origin).read_bytes()
        identity[f"module {module}"] = hashlib.sha256(source).hexdigest()
        if spec.origin.endswith(".py"):
            is_package = spec.submodule_search_locations is not None
            waiting.extend(_imports(source, module if is_package else module.rpartition(".")[0], spec.origin))
    return dict(sorted(identity.items()))


def module_files(reference: str) -> dict[str, Path]:
    """Source files of the user's modules that `package.module:name` imports, by their path below an import folder.

    Modules of installed packages are left out. Raises as `user_code_digests`.
    """
    files: dict[str, Path] = {}
    for entry in user_code_digests(reference):
        kind, _, module = entry.partition(" ")
        spec = _spec(module) if kind == "module" else None
        if spec is None or spec.origin is None or _is_installed(spec):
            continue
        parts = module.split(".")
        is_package = spec.submodule_search_locations is not None
        name = Path(*parts, "__init__.py") if is_package else Path(*parts).with_suffix(Path(spec.origin).suffix)
        files[name.as_posix()] = Path(spec.origin)
    return files


def _spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """Find a module without importing it; its parent packages are imported."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):  # a parent that is missing or not a package
        return None


def _imports(source: bytes, package: str, origin: str) -> Iterator[str]:
    """Yield the modules in the import statements of a source, at any depth."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{origin} is not valid Python: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _parents(module: str) -> Iterator[str]:
    while (module := module.rpartition(".")[0]) != "":
        yield module


def _is_standard(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in _PROJECT


def _is_installed(spec: importlib.machinery.ModuleSpec) -> bool:
    """Return True for an installed package; modules in folders and editable installs are the user's code."""
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return any(Path(place).resolve().is_relative_to(root) for place in places for root in _INSTALLED)


def _add_distribution(identity: dict[str, str], top: str) -> None:
    for distribution in _distributions().get(top, ()):
        identity[f"package {distribution}"] = importlib.metadata.version(distribution)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
