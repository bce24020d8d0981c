"""Contents of the files of folders that are in use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def files_with(content: bytes, *folders: Path) -> list[Path]:
    """Files below these folders that contain these bytes.

    A file that is removed meanwhile is left out, because servers remove journals of their databases and old logs.
    """
    files = []
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        with suppress(FileNotFoundError):
            if content in path.read_bytes():
                files.append(path)
    return files
