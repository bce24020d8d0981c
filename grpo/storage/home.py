"""Home folder of runs on this machine: GRPO_HOME."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grpo.errors import ConfigError

_UNSAFE = "?#%\\"
"""Characters that end or escape a path in the URI of a database or an artifact."""


def home() -> Path:
    """Return the folder of GRPO_HOME, by default `runs` below the working folder.

    Raises `ConfigError` if it has characters that break URIs, because a database at `sqlite:///a?b/x.db` would be in
    `a`, and if it begins or ends with a blank.
    """
    given = os.environ.get("GRPO_HOME") or "runs"
    if given != given.strip():
        raise ConfigError(
            f"GRPO_HOME is {given!r}, with blanks or line ends around the name, so that it would be another folder. "
            "Set it without them"
        )
    folder = Path(given).expanduser().resolve()
    unsafe = sorted({character for character in str(folder) if character in _UNSAFE or not character.isprintable()})
    if unsafe:
        shown = ", ".join(map(repr, unsafe))
        raise ConfigError(
            f"GRPO_HOME {str(folder)!r} holds {shown}, which addresses of databases and artifacts cannot. Choose a "
            "folder without such characters"
        )
    return folder


_OTHERS = 0o077


def keep_private() -> None:
    """Let this process, and processes that it starts, write files that only their owner can read."""
    os.umask(_OTHERS)


@contextmanager
def private_files() -> Iterator[None]:
    """Apply `keep_private` while the block runs."""
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def tighten(folder: Path, *, dry_run: bool = False) -> int:
    """Remove the permissions of group and others from a folder and everything in it, and return the number of changes.

    With `dry_run` the changes are only counted. Links are not followed, and files of other users are not changed.
    """
    changed = 0
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):  # a run has removed it
            status = path.lstat()
            mode = stat.S_IMODE(status.st_mode)
            if mode & _OTHERS and status.st_uid == os.getuid() and not stat.S_ISLNK(status.st_mode):
                if not dry_run:
                    path.chmod(mode & ~_OTHERS)
                changed += 1
    return changed
