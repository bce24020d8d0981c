"""Identity of the user's code: digests of its modules, versions of the distributions that it imports.

    shop.rewards:Politeness imports shop.words and the package textstat
        module shop            sha256 of shop/__init__.py
        module shop.rewards    sha256 of shop/rewards.py
        module shop.words      sha256 of shop/words.py
        package textstat       0.7.4

Imports are followed in the sources without running them. If a module belongs to this project, only the distributions
that it imports are added, because the project's sources have their own digest. Not covered: a module that is imported
by a computed name. A stage records such a module when it is opened (`grpo.reads.recorder`).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from grpo.errors import ConfigError
from grpo.reads.modules import PROJECT, find_module, is_installed, module_source

_LONGEST_PATH = 500


@functools.cache
def user_code_digests(reference: str) -> Mapping[str, str]:
    """Digests of all modules that `package.module:name` imports, and versions of the imported packages.

    The result is cached in a process, because modules that are imported do not change when their files do. Raises
    `ConfigError` if the module is missing, or if its source is not valid Python.
    """
    name = reference.partition(":")[0]
    if find_module(name) is None:
        raise ConfigError(
            f"{reference}: module {name!r} was not found. Install its package, or put its folder on PYTHONPATH"
        )
    identity: dict[str, str] = {}
    own = name.partition(".")[0]
    _add_distribution(identity, own)
    if own in PROJECT:
        _add_imported(identity, name)
    waiting, seen = [name], set()
    while waiting:
        module = waiting.pop()
        if module in seen or _is_standard(module):
            continue
        seen.add(module)
        if (spec := find_module(module)) is None:
            continue
        top = module.partition(".")[0]
        if top != own and is_installed(spec):
            _add_distribution(identity, top)
            continue
        waiting.extend(_parents(module))
        source = module_source(spec)
        if source is None or spec.origin is None:
            continue  # a namespace package or a built-in module
        identity[f"module {module}"] = hashlib.sha256(source).hexdigest()
        if spec.origin.endswith(".py"):
            is_package = spec.submodule_search_locations is not None
            try:
                waiting.extend(_imports(source, module if is_package else module.rpartition(".")[0]))
            except (SyntaxError, ValueError, RecursionError) as error:
                if module == name:  # another module may never be imported, e.g. one for an older Python in a try
                    raise ConfigError(f"{spec.origin} is not valid Python: {error}") from error
    return dict(sorted(identity.items()))


def module_files(reference: str) -> dict[str, Path]:
    """Source files of the user's modules that `package.module:name` imports, by their path below an import folder.

    Modules of installed packages are left out. Raises like `user_code_digests`.
    """
    files: dict[str, Path] = {}
    for entry in user_code_digests(reference):
        kind, _, module = entry.partition(" ")
        spec = find_module(module) if kind == "module" else None
        if spec is None or spec.origin is None or is_installed(spec) or not Path(spec.origin).is_file():
            continue
        parts = module.split(".")
        is_package = spec.submodule_search_locations is not None
        name = Path(*parts, "__init__.py") if is_package else Path(*parts).with_suffix(Path(spec.origin).suffix)
        files[name.as_posix()] = Path(spec.origin)
    return files


def user_modules(reference: str) -> list[str]:
    """Names of the user's modules that a reference imports. Raises like `user_code_digests`."""
    kinds = (entry.partition(" ") for entry in user_code_digests(reference))
    return [module for kind, _, module in kinds if kind == "module"]


@functools.cache
def source_texts(reference: str) -> frozenset[str]:
    """Texts in the sources of the user's modules, because they may name files. Raises like `user_code_digests`."""
    texts: set[str] = set()
    for module in user_modules(reference):
        spec = find_module(module)
        if spec is None or not (spec.origin or "").endswith(".py") or (source := module_source(spec)) is None:
            continue
        with suppress(SyntaxError, ValueError, RecursionError):
            nodes = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
            texts.update(text for text in nodes if isinstance(text, str) and len(text) <= _LONGEST_PATH)
    return frozenset(texts)


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yield the modules in the import statements of a source, at any depth. Raises like `ast.parse`."""
    for node in ast.walk(ast.parse(source)):
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


def _add_imported(identity: dict[str, str], module: str) -> None:
    """Add the distributions that a module of this project imports. The project's own digest covers the rest."""
    spec = find_module(module)
    if spec is None or (source := module_source(spec)) is None:
        return
    for imported in _imports(source, module.rpartition(".")[0]):
        if not _is_standard(imported):
            _add_distribution(identity, imported.partition(".")[0])


def _parents(module: str) -> Iterator[str]:
    while (module := module.rpartition(".")[0]) != "":
        yield module


def _is_standard(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in PROJECT


def _add_distribution(identity: dict[str, str], top: str) -> None:
    for distribution in _distributions(top):
        identity[f"package {distribution}"] = importlib.metadata.version(distribution)


@functools.cache
def _distributions(top: str) -> tuple[str, ...]:
    """Names of the installed distributions with this top-level module.

    `importlib.metadata.packages_distributions` is not used, because it parses the metadata and the files of all
    distributions, which takes a second.
    """
    named = (d.metadata["Name"] for d in importlib.metadata.distributions() if _provides(d, top))
    return tuple(dict.fromkeys(named))


def _provides(distribution: importlib.metadata.Distribution, top: str) -> bool:
    if (declared := distribution.read_text("top_level.txt")) is not None:
        return top in declared.split()
    files = "\n" + (distribution.read_text("RECORD") or "")  # a line begins with the path of a file
    return f"\n{top}/" in files or f"\n{top}.py," in files
