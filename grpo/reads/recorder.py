"""Record of files, folders and environment variables that were read, from Python's audit events (PEP 578)."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sysconfig
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo.reads.modules import PROJECT
from grpo.reads.names import EXISTS, STAT, VARIABLE, current_digest, named, variable_digest
from grpo.storage.shipped import package_folder, shipped_folder

_SYSTEM = ("/proc", "/sys", "/dev")
_STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
_INSTALLED = Path(sysconfig.get_path("purelib")).resolve()
_PROJECT = tuple(map(package_folder, PROJECT))


class ReadRecorder:
    """Files, folders and variables that were read. A file that was also written is not an input."""

    def __init__(self) -> None:
        self.unseen: set[str] = set()
        """Ways in which something was read that cannot be seen, e.g. a program that was started."""
        self._read: set[str] = set()
        self._listed: set[str] = set()
        self._written: set[str] = set()
        self._touched: dict[str, tuple[int, int] | None] = {}
        self._status: set[tuple[str, str]] = set()
        self._variables: dict[str, str | None] = {}
        self.by_module: dict[str, ReadRecorder] = {}
        """Reads by module of the user's, if one of its functions was in the stack."""

    def opened(self, path: str, *, writes: bool = False) -> None:
        """Record that a file was opened."""
        (self._written if writes else self._read).add(path)

    def listed(self, path: str) -> None:
        """Record that the names in a folder were read."""
        self._listed.add(path)

    @property
    def written(self) -> frozenset[str]:
        """Files that were opened for writing."""
        return frozenset(self._written)

    def touched(self, path: str) -> None:
        """Record that a file was given to code that reads or writes it. If it changes until the end, it was written."""
        if Path(path).is_file():
            self._touched.setdefault(path, _state(path))

    def looked_at(self, path: str, *, whole: bool) -> None:
        """Record that the existence of a file was read, or its `whole` status."""
        self._status.add((STAT if whole else EXISTS, path))

    def has_met(self, path: str) -> bool:
        """Return True if a file was looked at, or if its folder was listed."""
        return str(Path(path).parent) in self._listed or any(path == seen for _, seen in self._status)

    def variable(self, name: str, value: str | None) -> None:
        """Record that an environment variable was read. Its first value counts."""
        self._variables.setdefault(name, variable_digest(name, value))

    def digests(
        self, *, exclude: tuple[Path, ...] = (), roots: Mapping[str, str] | None = None
    ) -> dict[str, str | None]:
        """Digests by name, see `grpo.reads.names`, without the folders `exclude`. The digest is None if it is missing.

        `roots` are the folders of the user's modules, from `roots_of`.
        """
        return {name: current_digest(name) for name in self.names(exclude=exclude, roots=roots)} | self.variables()

    def variables(self) -> dict[str, str | None]:
        """Digests of the environment variables by name."""
        return {f"{VARIABLE}{name}": digest for name, digest in sorted(self._variables.items())}

    def names(self, *, exclude: tuple[Path, ...] = (), roots: Mapping[str, str] | None = None) -> list[str]:
        """Names of the files and folders, without digests. See `digests`."""
        unchanged = {path for path, state in self._touched.items() if _state(path) == state}
        paths = {_source(path) for path in (self._read | unchanged) - self._written} | self._listed
        places = {("", path) for path in paths} | {seen for seen in self._status if seen[1] not in self._written}
        return sorted(f"{kind}{named(path, roots or {})}" for kind, path in places if _counts(path, exclude))


def changed(reads: Mapping[str, str | None]) -> list[str]:
    """Return the names of files and variables that changed since they were read."""
    return [name for name, digest in reads.items() if current_digest(name) != digest]


_CODE = (".py", ".pyc", ".so", ".pth")
_INSTALLED_FILES, _STANDARD_FILES = f"{_INSTALLED}{os.sep}", f"{_STANDARD}{os.sep}"


def is_installed_code(path: object) -> bool:
    """Return True for a file of Python or of an installed package that no recorder counts, see `_of_the_installation`.

    It looks only at the text of the path, because the imports of a run open six thousand such files.
    """
    if not isinstance(path, str):
        return False
    if path.startswith(_INSTALLED_FILES):
        return path.endswith(_CODE) or ".dist-info" in path
    return path.startswith(_STANDARD_FILES)


def note(recorder: ReadRecorder, event: str, arguments: tuple[Any, ...]) -> None:
    """Record an audit event."""
    if event == "open":
        if (path := _absolute(arguments[0])) is not None:  # None: a descriptor of a file that was opened before
            recorder.opened(path, writes=_writes(*arguments[1:3]))
    elif event in ("os.listdir", "os.scandir"):
        if (path := _absolute("." if arguments[0] is None else arguments[0])) is not None:
            recorder.listed(path)
    elif event == "sqlite3.connect":
        for path in _databases(arguments[0]):
            recorder.touched(path)
    elif event == "ctypes.dlopen":
        recorder.unseen.add("C code through ctypes")
        if (path := _absolute(arguments[0])) is not None:
            recorder.touched(path)
    elif event in ("os.fork", "os.forkpty"):
        recorder.unseen.add("a process that it forks")
    else:
        _note_program(recorder, event, arguments)


DEVICE_REPORTS = ("nvidia-smi", "rocm-smi", "amd-smi", "xpu-smi")
"""Programs that report the devices of the machine. Libraries start them, for example accelerate when it makes a trainer
on a GPU. They read no file of the user, so they do not count."""
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")


def _note_program(recorder: ReadRecorder, event: str, arguments: tuple[Any, ...]) -> None:
    """Record a program that is started: its file, and every argument that is a file."""
    folder = None
    if event == "os.system":
        words = _words(arguments[0])
    else:
        given = arguments[1]
        words = _words(given) if isinstance(given, (str, bytes)) else [os.fsdecode(word) for word in given or ()]
        words = [part for word in words for part in ((word, *_words(word)) if " " in word else (word,))]
        folder = arguments[2] if event == "subprocess.Popen" else None
        if arguments[0] is not None:
            words.insert(0, os.fsdecode(arguments[0]))
    name = Path(words[0]).name if words else ""
    is_report = name in DEVICE_REPORTS and not any(set(word) & set(";&|") for word in words)
    if not is_report:
        recorder.unseen.add(f"the program {name}")
    program = shutil.which(words[0]) if words and not is_report else None
    for word in (*words, *(word.partition("=")[2] for word in words), program or ""):
        path = Path(os.fsdecode(folder) if folder is not None else Path.cwd(), word)
        if word and path.is_file():
            recorder.touched(os.path.abspath(path))  # noqa: PTH100 - a link is what is named


def _words(command: str | bytes) -> list[str]:
    text = os.fsdecode(command)
    try:
        return shlex.split(text)
    except ValueError:  # an open quotation
        return text.split()


def _databases(database: object) -> Iterator[str]:
    """Files of a database of sqlite3: its own file, and the journal of changes that are not in it yet."""
    text = os.fsdecode(database) if isinstance(database, (str, bytes, os.PathLike)) else ""
    if text.startswith("file:"):
        text = urllib.parse.unquote(urllib.parse.urlsplit(text).path)
    if text and text != ":memory:":
        yield from (os.path.abspath(text + end) for end in ("", "-wal"))  # noqa: PTH100 - a link is what is named


def _absolute(path: object) -> str | None:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - a link is what the code opened


def _state(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _writes(mode: object = None, flags: object = 0) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _source(path: str) -> str:
    """Map compiled Python to its source file."""
    if not path.endswith(".pyc"):
        return path
    try:
        return importlib.util.source_from_cache(path)
    except (ValueError, NotImplementedError):
        return path


def _counts(path: str, exclude: tuple[Path, ...]) -> bool:
    """Return True if a path is outside of the system, Python, installed code, this project and `exclude`.

    The data that this project ships counts nevertheless.
    """
    roots = (*map(str, (*_PROJECT, *exclude)), *_SYSTEM)
    return _below(path, (str(shipped_folder()),)) or not (_below(path, roots) or _of_the_installation(path))


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(root + os.sep) for root in roots)


def _of_the_installation(path: str) -> bool:
    """Return True for code of Python and of installed packages, because the identity has their versions already."""
    place = Path(path)
    if place.is_relative_to(_INSTALLED):
        return place.suffix in _CODE or ".dist-info" in path or place.is_dir()
    return place.is_relative_to(_STANDARD)
