from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.artifacts import MANIFEST, Artifact, ArtifactStore
from grpo.errors import ArtifactError, StorageError
from grpo.storage.files import write_atomically
from tests.places import ROOT


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "store"))


def _text(store: ArtifactStore, text: str) -> Artifact:
    with store.new_file("note", ".txt") as new:
        new.path.write_text(text)
    return new.artifact


def _folder(store: ArtifactStore) -> Artifact:
    with store.new_folder("pair") as new:
        (new.path / "a").write_text("1")
        (new.path / "b").write_text("2")
    return new.artifact


def test_the_same_content_is_the_same_artifact(store: ArtifactStore):
    """Two writers of equal bytes get one address."""
    assert _text(store, "x") == _text(store, "x")
    assert _text(store, "x").uri != _text(store, "y").uri


def test_a_failed_writer_leaves_nothing(store: ArtifactStore):
    """The staging folder is empty after an error in the block."""
    with pytest.raises(ValueError, match="stop"), store.new_file("note", ".txt") as new:  # noqa: PT012
        new.path.write_text("half")
        raise ValueError("stop")
    assert [p for p in Path(store.root).rglob("*") if p.is_file()] == []


_KILLED = """
import os, signal, sys
from grpo.artifacts import ArtifactStore

with ArtifactStore(sys.argv[1]).new_folder("note") as new:
    (new.path / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_a_killed_writer_are_removed_by_the_next_write(store: ArtifactStore):
    """Killed in the middle: its folder stays until the next write. The folder of a writer in progress stays."""
    staging = Path(store.root) / ".staging"
    subprocess.run([sys.executable, "-c", _KILLED, store.root], cwd=ROOT, check=False)
    assert [path.name for path in staging.rglob("half")] == ["half"]

    with store.new_file("note", ".txt") as new:
        new.path.write_text("slow")
        _text(store, "x")
        assert [left.read_text() for left in staging.iterdir() if left.suffix != ".lock"] == ["slow"]
    assert list(staging.iterdir()) == []


def test_a_changed_file_is_refused(store: ArtifactStore):
    """One other byte is damage, and the error names the artifact."""
    artifact = _text(store, "x")
    Path(artifact.uri).write_text("y")
    with pytest.raises(ArtifactError, match="damaged"):
        ArtifactStore(store.root).path(artifact)


@pytest.mark.parametrize("harm", ["change", "remove", "add"])
def test_a_folder_that_differs_from_its_manifest_is_refused(store: ArtifactStore, harm: str):
    """A changed, a missing and an extra file are all damage."""
    folder = Path(_folder(store).uri)
    artifact = _folder(store)
    if harm == "change":
        (folder / "a").write_text("9")
    elif harm == "remove":
        (folder / "b").unlink()
    else:
        (folder / "c").write_text("3")
    with pytest.raises(ArtifactError, match="damaged"):
        ArtifactStore(store.root).path(artifact)


def test_a_damaged_artifact_is_replaced_by_the_next_writer(store: ArtifactStore):
    """Storing the same content again mends it."""
    artifact = _folder(store)
    (Path(artifact.uri) / "a").write_text("9")
    fresh = ArtifactStore(store.root)
    assert _folder(fresh) == artifact
    assert (fresh.path(artifact) / "a").read_text() == "1"
    assert (fresh.path(artifact) / MANIFEST).is_file()


def test_a_missing_artifact_is_named(store: ArtifactStore):
    """A deleted file is an error with its address."""
    artifact = _text(store, "x")
    Path(artifact.uri).unlink()
    with pytest.raises(ArtifactError, match=r"note .* is missing"):
        store.path(artifact)


def test_an_artifact_outside_the_store_is_refused(store: ArtifactStore, tmp_path: Path):
    """A path that climbs out of the store is not followed."""
    outside = Artifact(uri=f"{store.root}/../secret", sha256="0", kind="note")
    with pytest.raises(ArtifactError, match="outside the store"):
        store.path(outside)


def test_a_full_disk_names_the_remedy(store: ArtifactStore):
    """/dev/full is a full disk: the error names the store and the remedy."""
    with pytest.raises(StorageError, match="disk is full"), store.new_file("note", ".txt"):
        Path("/dev/full").write_text("x" * 100_000)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_an_unwritable_store_names_the_remedy(store: ArtifactStore, code: int):
    """Read-only and forbidden stores are errors of their own."""
    with pytest.raises(StorageError, match="set `store`"), store.new_file("note", ".txt"):
        raise OSError(code, "no")


def test_a_store_in_memory_works_like_one_on_disk():
    """Any fsspec address serves: written, fetched back, verified."""
    store = ArtifactStore("memory://bucket/artifacts")
    artifact = _folder(store)
    assert (store.path(artifact) / "a").read_text() == "1"
    assert artifact.uri.startswith("memory://")


def test_a_file_is_replaced_at_once(tmp_path: Path):
    """Readers see the old text or the new one; nothing else is left behind."""
    path = tmp_path / "page.html"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
