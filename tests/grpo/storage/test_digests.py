"""Digests of files that are hashed while their folder is still being written."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from grpo.storage import digests
from grpo.storage.digests import folder_digests, hash_early


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_an_early_digest_is_taken_over_once(tmp_path: Path, monkeypatch):
    """The folder reads only the other file; the second time it reads both."""
    (tmp_path / "weights").write_bytes(b"one")
    (tmp_path / "config").write_bytes(b"two")
    hash_early(tmp_path / "weights")
    read: list[str] = []
    monkeypatch.setattr(digests, "file_digest", lambda file: read.append(file.name) or sha256(file.read_bytes()))
    expected = {"weights": sha256(b"one"), "config": sha256(b"two")}
    assert folder_digests(tmp_path) == expected
    assert read == ["config"]
    assert folder_digests(tmp_path) == expected
    assert sorted(read[1:]) == ["config", "weights"]


def test_a_file_that_changed_after_its_early_digest_is_hashed_again(tmp_path: Path):
    """A new content of the same length, another file under the name, and a file that is longer."""
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    hash_early(file)
    os.utime(file, ns=(0, 1))
    file.write_bytes(b"two")
    assert folder_digests(tmp_path) == {"weights": sha256(b"two")}
    hash_early(file)
    state = file.stat()
    (tmp_path / "other").write_bytes(b"ten")
    os.utime(tmp_path / "other", ns=(state.st_atime_ns, state.st_mtime_ns))
    os.replace(tmp_path / "other", file)
    assert folder_digests(tmp_path) == {"weights": sha256(b"ten")}
    hash_early(file)
    state = file.stat()
    file.write_bytes(b"long")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert folder_digests(tmp_path) == {"weights": sha256(b"long")}
