"""Files that ship with the package: configs, scenario packs, rubrics, models. Example: `grpo://models/desk_clerk`."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from grpo.errors import DISTRIBUTION, ConfigError

SCHEME = "grpo://"
_PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def package_folder(name: str) -> Path:
    """Folder of an installed package, which is not imported. Raises `ConfigError` if the package is missing."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"package {name} is missing. Install {DISTRIBUTION} again")
    return Path(spec.submodule_search_locations[0]).resolve()


def shipped_folder() -> Path:
    """Folder of the shipped files: inside of the package if it was installed from a wheel, else in the checkout."""
    installed = _PACKAGE / "data"
    return installed if installed.is_dir() else _PACKAGE.parent / "data"


def local_file(path: str | Path) -> Path:
    """Path of a shipped file, or the path itself.

    An address with only one slash is accepted, because `pathlib` turns the two slashes into one.
    """
    collapsed = SCHEME.removesuffix("/")
    text = str(path)
    return shipped_file(SCHEME + text.removeprefix(collapsed).lstrip("/")) if text.startswith(collapsed) else Path(path)


def shipped_file(address: str) -> Path:
    """Path of an address such as `grpo://configs/quickstart.yaml`. Raises `ConfigError` if the file does not ship."""
    folder = shipped_folder()
    path = (folder / address.removeprefix(SCHEME)).resolve()
    if not path.is_relative_to(folder) or not path.exists():
        parts = ", ".join(sorted(part.name for part in folder.iterdir() if part.is_dir()))
        raise ConfigError(f"{address} does not ship with grpo. Its folders are {parts}, see {folder}")
    return path
