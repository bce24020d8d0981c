"""Local copies of the objects of an object store, in a private folder of this user below TMPDIR."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from grpo.errors import StorageError
from grpo.storage.files import storage_errors
from grpo.storage.locks import remove

_ABANDONED_S = 7 * 24 * 3600.0
"""Age after the last use at which local copies are removed."""
_ETAGS = ".etags"


def user_temp_folder() -> Path:
    """Private folder of this user below TMPDIR, for uploads to and downloads from an object store.

    Raises `StorageError` if the folder exists and belongs to another user or has other permissions.
    """
    folder = Path(tempfile.gettempdir()) / f"grpo-{os.getuid()}"
    with storage_errors(str(folder)):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise StorageError(f"{folder} is not a folder of only this user: remove it, or set TMPDIR to another place")
    return folder


def etags_file(place: Path) -> Path:
    """File next to a copy that names the objects it was made from."""
    return place.with_name(f"{place.name}{_ETAGS}")


def forget_unused(copies: Path) -> None:
    """Remove copies that were not used for a week. They are downloaded again on demand."""
    for etags in copies.glob(f"*{_ETAGS}"):
        with suppress(FileNotFoundError):  # another process removes it, too
            if time.time() - etags.stat().st_mtime > _ABANDONED_S:
                etags.unlink()
                remove(etags.with_suffix(""))


def read_etags(place: Path) -> object:
    """URI and ETags of the objects that the copy was made from. None if unknown."""
    try:
        return json.loads(etags_file(place).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
