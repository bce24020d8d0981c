"""Modules by name, found without importing anything.

`importlib.util.find_spec("gymnasium.utils.save_video")` imports `gymnasium` and `gymnasium.utils`, which may fail,
print or take seconds. Instead, this module asks each finder of `sys.meta_path` for one part of the name after the
other, and passes the search path of the part before.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution
from pathlib import Path
from typing import Literal

from grpo.storage.shipped import package_folder

Owner = Literal["project", "user", "installed", "generated"]
PROJECT = ("grpo", "grpo_tasks", "grpo_local", "grpo_flows", "grpo_cli")
"""Packages of this project."""
_INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")})
_STANDARD = Path(sysconfig.get_path("stdlib")).resolve()


def find_module(name: str) -> importlib.machinery.ModuleSpec | None:
    """Find a module in a package, a namespace package, a zip file or an editable install. None if it is missing.

    If a package changes its `__path__` when it is imported, its modules are found only after its import.
    """
    path: Sequence[str] | None = None
    spec = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        if count > 1 and path is None:
            return None  # its parent is a module, not a package
        part = ".".join(parts[:count])
        if (spec := _find(part, path)) is None:
            return None
        path = _search_path(part, spec)
    return spec


def module_source(spec: importlib.machinery.ModuleSpec) -> bytes | None:
    """Bytes of a module's file, also in a zip file. None for a namespace package and a built-in module."""
    if spec.origin is None or not spec.has_location:
        return None
    if Path(spec.origin).is_file():
        return Path(spec.origin).read_bytes()
    get_data = getattr(spec.loader, "get_data", None)
    try:
        return None if get_data is None else bytes(get_data(spec.origin))
    except OSError:
        return None


def is_installed(spec: importlib.machinery.ModuleSpec) -> bool:
    """Return True if a module belongs to an installed package. Its version then identifies its code.

    A module counts as installed if it is in this environment's site-packages, or if the metadata of its package lies
    in the same folder, as after `pip install --target vendor` in a folder of PYTHONPATH. Modules in other folders are
    the user's code, also in editable installs.
    """
    places = [spec.origin] if spec.origin else list(_locations(spec) or ())
    if any(Path(place).resolve().is_relative_to(root) for place in places for root in _INSTALLED):
        return True
    top = spec.name.partition(".")[0]
    return any(top in _distributed(root) for place in places for root in _roots(place, spec))


def is_users(file: str) -> bool:
    """Return True if a source file does not belong to Python, this project or an installed package."""
    return owner(file) == "user"


@functools.cache
def owner(file: str) -> Owner:
    """Return the owner of a source file, which depends on its folder. Code without a file is "generated".

    Links are followed once per folder and not once per file, because a process imports thousands of files.
    """
    if file.startswith("<"):
        return "generated"
    path = Path(file)
    return _owner_of((path.resolve() if path.is_symlink() else path).parent)


@functools.cache
def _owner_of(folder: Path) -> Owner:
    place = folder.resolve()
    if any(place.is_relative_to(package_folder(name)) for name in PROJECT):
        return "project"
    if any(place.is_relative_to(root) for root in (*_INSTALLED, _STANDARD)) or "site-packages" in place.parts:
        return "installed"
    return "user"


def import_root(spec: importlib.machinery.ModuleSpec) -> Path | None:
    """Folder on the import path below which a module lies. None if it is built in."""
    places = [spec.origin] if spec.has_location and spec.origin else list(_locations(spec) or ())
    return next((root for place in places for root in _roots(place, spec)), None)


def _roots(place: str, spec: importlib.machinery.ModuleSpec) -> Iterator[Path]:
    """Folder that holds the top-level module of this file or folder."""
    depth = spec.name.count(".") + (spec.submodule_search_locations is not None and spec.origin == place)
    parents = Path(place).resolve().parents
    if depth < len(parents):
        yield parents[depth]


def _find(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # noqa: BLE001, S112 - a finder of another package may raise anything, and the next one is asked
            continue
        if spec is not None:
            return spec
    return _namespace(name, path or ())


def _namespace(name: str, path: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
    """Find a namespace package inside of a package, because `PathFinder` needs the parent to be imported."""
    folders = [str(folder) for place in path if (folder := Path(place, name.rpartition(".")[2])).is_dir()]
    if not folders:
        return None
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = folders
    return spec


def _search_path(name: str, spec: importlib.machinery.ModuleSpec) -> Sequence[str] | None:
    """Folders of a package's modules: its present `__path__` if it is imported, else the folders where it was found."""
    imported = getattr(sys.modules.get(name), "__path__", None)
    try:
        return list(imported) if imported is not None else _locations(spec)
    except Exception:  # noqa: BLE001 - a path object of the package itself
        return _locations(spec)


def _locations(spec: importlib.machinery.ModuleSpec) -> Sequence[str] | None:
    """Search path of a spec, as stored.

    The path object of a namespace package would compute itself from its parent again, which is not imported.
    """
    locations = spec.submodule_search_locations
    return locations if locations is None else list(getattr(locations, "_path", locations))


@functools.cache
def _distributed(root: Path) -> frozenset[str]:
    """Top-level modules of the distributions that have their metadata in this folder.

    A folder like `shop.egg-info` without a version is left out, because an editable install leaves it next to the
    sources.
    """
    names: set[str] = set()
    for distribution in importlib.metadata.distributions(path=[str(root)]):
        place = Path(str(getattr(distribution, "_path", "")))
        if place.suffix == ".dist-info" or (place.suffix == ".egg-info" and "-" in place.stem):
            names.update(_top_level(distribution))
    return frozenset(names)


def _top_level(distribution: Distribution) -> Iterator[str]:
    if (text := distribution.read_text("top_level.txt")) is not None:
        yield from text.split()
        return
    for file in distribution.files or ():
        first = file.parts[0]
        if len(file.parts) > 1 or file.suffix in (".py", ".so"):
            yield first.partition(".")[0]
