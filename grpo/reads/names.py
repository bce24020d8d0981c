"""Names of files and variables that are read, independent of the folder that a project lies in, and their digests.

    /data/words.txt            the content of a file, or the names in a folder
    shop:shop/words.txt        the same, from the folder on the import path that holds the user's module `shop`
    exists /data/words.txt     existence of a file or a folder
    stat shop:words.txt        its size, mode and time of change
    variable WORDS             the value of an environment variable

If a project is moved or copied as a whole, names of the second form stay the same, so its cache stays valid.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from grpo.reads.modules import find_module, import_root
from grpo.storage.files import file_digest

EXISTS, STAT, VARIABLE = "exists ", "stat ", "variable "
FILE = "file "
"""Prefix of files and folders in lineages."""
_CREDENTIAL = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_SET = "set"
ABSENT = "absent"
"""Digest in a lineage for a file or a variable that was looked for and is missing."""


def roots_of(modules: Iterable[str]) -> dict[str, str]:
    """Folders on the import path that hold these top-level modules."""
    specs = {top: find_module(top) for top in sorted({module.partition(".")[0] for module in modules})}
    roots = {top: import_root(spec) for top, spec in specs.items() if spec is not None}
    return {top: str(root) for top, root in roots.items() if root is not None}


def named(path: str, roots: Mapping[str, str]) -> str:
    """Name of a path. If it lies below one of the folders, the name is relative to that folder."""
    for top, root in roots.items():
        if path.startswith(root.rstrip(os.sep) + os.sep):
            return f"{top}:{path[len(root.rstrip(os.sep)) + 1 :]}"
    return path


def renamed(name: str, roots: Mapping[str, str]) -> str:
    """The name with its absolute path shortened as by `named`."""
    kind = next((kind for kind in (EXISTS, STAT, VARIABLE) if name.startswith(kind)), "")
    return name if kind == VARIABLE else f"{kind}{named(name.removeprefix(kind), roots)}"


def without(digests: Mapping[str, str | None], folders: Iterable[Path]) -> dict[str, str | None]:
    """Digests without files that lie in these folders."""
    tops = tuple(f"{str(folder).rstrip(os.sep)}{os.sep}" for folder in folders)
    return {name: digest for name, digest in digests.items() if not f"{_parts(name)[1]}{os.sep}".startswith(tops)}


def shown(name: str) -> str:
    """Name as a lineage gives it, with an absolute path: `file /home/me/shop/words.txt`."""
    kind, rest = _parts(name)
    return f"{kind}{_path(rest) or rest}" if kind != VARIABLE else name


def current_digest(name: str) -> str | None:
    """Present digest of a file or variable by its name, or by its name from `shown`. None if it is missing.

    If a variable looks like a credential, its value does not count, only that it is set, because the value could be
    guessed from a digest.
    """
    kind, rest = _parts(name)
    if kind == VARIABLE:
        return variable_digest(rest, os.environ.get(rest))
    path = _path(rest)
    if path is None:
        return None
    try:
        if kind == EXISTS:
            return "folder" if Path(path).is_dir() else "file" if Path(path).exists() else None
        if kind == STAT:
            status = Path(path).stat()
            return hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} {status.st_mode}".encode()).hexdigest()
        if Path(path).is_dir():
            names = sorted(entry.name for entry in Path(path).iterdir())
            return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
        return file_digest(Path(path))
    except OSError:
        return None


def variable_digest(name: str, value: str | None) -> str | None:
    """Digest of a variable's value. None if it is not set, and the same text for every value of a credential."""
    if value is None or _CREDENTIAL.search(name):
        return None if value is None else _SET
    return hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()


def is_read(name: str) -> bool:
    """Return True if a name among the digests of a lineage is a file or a variable that was read."""
    return name.startswith((FILE, EXISTS, STAT, VARIABLE))


def _parts(name: str) -> tuple[str, str]:
    kind = next((kind for kind in (EXISTS, STAT, VARIABLE, FILE) if name.startswith(kind)), "")
    return kind or FILE, name.removeprefix(kind)


def _path(place: str) -> str | None:
    """Absolute path of a place. None if it is relative to a module that is not on this machine."""
    if place.startswith(os.sep):
        return place
    top, separator, relative = place.partition(":")
    root = roots_of([top]).get(top) if separator else None
    return None if root is None else f"{root}{os.sep}{relative}"
