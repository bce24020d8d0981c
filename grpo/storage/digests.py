"""Digests of files, and of folders by their manifest, computed once by a process unless the files change."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo.storage.files import file_digest

MANIFEST = "manifest.json"
"""File of a folder that has the sha256 of each other file. Its own sha256 is the digest of the folder."""
FileStates = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and modification time of each file."""
_known: dict[Path, tuple[str, FileStates]] = {}
"""By path: the last digest that this process has computed, and the states of the files at that time."""


def present_digest(path: Path) -> str:
    """Digest of an existing file or folder, or in words what is wrong with a folder that differs from its manifest."""
    states = file_states(path)
    digest, known_states = _known.get(path.resolve(), ("", ()))
    if not digest or known_states != states:
        digest = _computed(path)
        note_digest(path, digest, states)
    return digest


def note_digest(path: Path, digest: str, states: FileStates) -> None:
    """Keep the digest of a file or a folder that has files of these states."""
    _known[path.resolve()] = digest, states


def file_states(path: Path) -> FileStates:
    """States of a file, or of the files below a folder."""
    states = ((str(file.relative_to(path)), file.stat()) for file in _files(path))
    return tuple((name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states)


def folder_digests(folder: Path) -> dict[str, str]:
    """sha256 of each file below a folder, by its relative path, without the manifest."""
    files = [path for path in _files(folder) if path.name != MANIFEST]
    with ThreadPoolExecutor() as threads:  # hashing lets other threads run
        digests = list(threads.map(file_digest, files))
    return {str(path.relative_to(folder)): digest for path, digest in zip(files, digests, strict=True)}


def _computed(path: Path) -> str:
    if not path.is_dir():
        return file_digest(path)
    manifest = path / MANIFEST
    if not manifest.is_file():
        return "no manifest"
    same = json.loads(manifest.read_bytes()) == folder_digests(path)
    return file_digest(manifest) if same else "files that differ from the manifest"


def _files(path: Path) -> list[Path]:
    """A file, or the files below a folder."""
    return sorted(below for below in path.rglob("*") if below.is_file()) if path.is_dir() else [path]
