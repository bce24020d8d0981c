from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from grpo.artifacts import Artifact, ArtifactStore, local_path, store_of, stored_artifact
from grpo.errors import ArtifactError, ConfigError, ErasedError, RemovedError, StorageError
from grpo.storage.digests import MANIFEST
from grpo.storage.fetched import user_temp_folder
from grpo.storage.files import file_digest, write_atomically
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


def test_a_folder_that_is_not_kept_is_dropped(store: ArtifactStore):
    """No file stays in the store, and the folder has no artifact."""
    with store.new_folder("pair") as new:
        (new.path / "a").write_text("1")
        new.kept = False
    assert [p for p in Path(store.root).rglob("*") if p.is_file()] == []
    with pytest.raises(ArtifactError, match="is not stored yet"):
        _ = new.artifact


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
    Path(artifact.uri).write_text("y", encoding="utf-8")
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
        Path("/dev/full").write_text("x" * 100_000, encoding="utf-8")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_an_unwritable_store_names_the_remedy(store: ArtifactStore, code: int):
    """Read-only and forbidden stores are errors of their own."""
    with pytest.raises(StorageError, match="`store`"), store.new_file("note", ".txt"):
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


@pytest.fixture(params=["folder", "object store"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """A new store in a folder of this machine, and one behind an address."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name = request.node.name.replace("[", "-").replace("]", "").replace(" ", "-")
    return ArtifactStore(str(tmp_path / "store") if request.param == "folder" else f"memory://{name}")


@pytest.mark.parametrize("put", [_folder, lambda store: _text(store, "x")], ids=["a folder", "a file"])
def test_a_removed_artifact_is_not_reported_as_missing(any_store: ArtifactStore, put: Callable[..., Artifact]):
    """Distinguished from one that was never there; a second removal has no effect."""
    artifact, other = put(any_store), _text(any_store, "other")
    assert not any_store.is_removed(artifact)
    assert any_store.remove(artifact)
    assert not any_store.remove(artifact)
    assert (any_store.is_removed(artifact), any_store.is_removed(other)) == (True, False)
    reader = ArtifactStore(any_store.uri)
    with pytest.raises(RemovedError) as refusal:
        reader.path(artifact)
    assert str(refusal.value) == f"{artifact.kind} {artifact.uri} was removed, because no run or version references it"
    reader.verify(artifact)
    assert reader.path(other).read_text() == "other"
    any_store.forget_removal(artifact)
    assert not any_store.is_removed(artifact)
    with pytest.raises(ArtifactError, match="is missing") as missing:
        reader.path(artifact)
    assert not isinstance(missing.value, RemovedError)


def test_an_artifact_that_is_written_again_after_removal_is_there(any_store: ArtifactStore):
    """The record of the removal hides nothing."""
    artifact = _folder(any_store)
    any_store.remove(artifact)
    assert _folder(any_store) == artifact
    assert not any_store.is_removed(artifact)
    assert (any_store.path(artifact) / "b").read_text() == "2"


def test_a_folder_is_found_by_its_kind_and_digest(any_store: ArtifactStore):
    """Under the name of its digest."""
    artifact = _folder(any_store)
    assert any_store.folder("pair", artifact.sha256) == artifact
    assert artifact.kind == "pair"


def test_a_store_has_what_it_stored_under_its_kind_and_digest(any_store: ArtifactStore):
    """A store that was moved finds its artifacts by the end of their addresses."""
    note = _text(any_store, "x")
    name = note.uri.rsplit("/", 1)[1]
    moved = note.model_copy(update={"uri": f"s3://before/store/note/{name}"})
    assert (any_store.has(note), any_store.has(moved)) == (True, True)
    assert any_store.own(moved) == note
    for changes in ({"kind": "split"}, {"sha256": "0" * 64}, {"uri": name}):
        other = note.model_copy(update=changes)
        assert not any_store.has(other)
        assert any_store.own(other) == other


@pytest.mark.parametrize("put", [_folder, lambda store: _text(store, "x")], ids=["a folder", "a file"])
def test_what_remains_of_an_erased_artifact_is_found(any_store: ArtifactStore, put: Callable[..., Artifact]):
    """Also after a second erasure. If nothing remains, the artifact itself is returned, and its path is refused."""
    first, second, third = put(any_store), _text(any_store, "less"), _text(any_store, "least")
    any_store.path(first)
    any_store.erase(first, second)
    assert any_store.remaining(first) == second
    any_store.erase(second, third)
    reader = ArtifactStore(any_store.uri)
    assert (reader.remaining(first), reader.remaining(third)) == (third, third)
    assert (reader.is_erased(second), reader.is_erased(third), reader.is_removed(second)) == (True, False, False)
    with pytest.raises(ErasedError, match="was erased, because a user asked for it"):
        reader.path(first)
    any_store.erase(third, None)
    assert any_store.remaining(first) == third
    assert not any_store.has(first)


def test_an_artifact_of_another_store_is_found_in_the_homes_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If the home does not have it either, it is expected in the store that its address names."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    own = ArtifactStore(str(tmp_path / "artifacts"))
    note = _text(own, "x")
    moved = note.model_copy(update={"uri": f"{tmp_path}/gone/note/{note.uri.rsplit('/', 1)[1]}"})
    assert store_of(moved).uri == own.uri
    own.erase(note, None)
    assert store_of(moved).uri == f"{tmp_path}/gone"


def test_the_address_of_an_artifact_without_its_digest_is_refused():
    """The error has the address."""
    with pytest.raises(ConfigError, match=r"^memory://addressed/note/x\.txt is not the address of an artifact"):
        local_path("memory://addressed/note/x.txt")


def test_the_address_of_an_artifact_is_a_path_here_and_a_uri_with_a_digest_elsewhere(
    store: ArtifactStore, tmp_path: Path
):
    """Each can be written into a config and read."""
    note = _text(store, "x")
    assert store.address(note) == str(store.path(note))
    assert local_path(store.address(note)) == store.path(note)
    away = ArtifactStore("memory://addressed/artifacts")
    note = _text(away, "x")
    assert away.address(note) == f"{note.uri}#{note.sha256}"
    assert local_path(away.address(note)).read_text() == "x"
    with pytest.raises(ArtifactError, match=rf"^note {note.uri} is damaged: expected 0000, found {note.sha256}$"):
        local_path(f"{note.uri}#0000")


def test_a_manifest_lists_its_files_in_the_order_of_their_names(store: ArtifactStore):
    """ "-" sorts before "/": the same files have the same manifest."""
    with store.new_folder("trio") as new:
        for name in ("a-b", "a/b", "Z"):
            (new.path / name).parent.mkdir(exist_ok=True)
            (new.path / name).write_text(name)
    manifest = json.loads((store.path(new.artifact) / MANIFEST).read_text())
    assert list(manifest) == ["Z", "a-b", "a/b"]
    assert manifest["Z"] == hashlib.sha256(b"Z").hexdigest()


@pytest.mark.parametrize("put", [_folder, lambda store: _text(store, "x")], ids=["a folder", "a file"])
def test_what_changes_after_it_was_read_is_noticed_by_its_modification_time(
    store: ArtifactStore, put: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
):
    """At the old time the file is trusted by every store of this process, at a later one, or in another, it is not."""
    artifact = put(store)
    path = store.path(artifact)
    changed = path / "a" if path.is_dir() else path
    state = changed.stat()
    changed.write_text("9")
    os.utime(changed, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert store.path(artifact) == ArtifactStore(store.root).path(artifact) == path
    with monkeypatch.context() as patch:
        patch.setattr("grpo.storage.digests._known", {})  # as in another process
        with pytest.raises(ArtifactError, match="damaged"):
            store.path(artifact)
    os.utime(changed, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    with pytest.raises(ArtifactError, match="damaged"):
        store.path(artifact)


def test_what_this_process_has_written_is_not_read_again(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch):
    """Its digest is known; a copy that was there before is compared."""
    artifact = _folder(store)
    read: list[Path] = []
    monkeypatch.setattr("grpo.storage.digests.file_digest", lambda path: read.append(path) or file_digest(path))
    ArtifactStore(store.root).path(artifact)
    assert not read
    monkeypatch.setattr("grpo.storage.digests._known", {})
    ArtifactStore(store.root).path(artifact)
    assert read


@pytest.mark.parametrize(
    ("harm", "difference"),
    [
        (lambda folder: (folder / "b").unlink(), "files that differ from the manifest"),
        (lambda folder: (folder / MANIFEST).unlink(), "no manifest"),
        (lambda folder: [file.unlink() for file in folder.iterdir()], "no manifest"),
    ],
    ids=["a file is gone", "the manifest is gone", "everything is gone"],
)
def test_the_damage_of_a_folder_is_named(store: ArtifactStore, harm: Callable[[Path], object], difference: str):
    """Kind, address, the digest that was expected, and what is there instead."""
    artifact = _folder(store)
    harm(Path(artifact.uri))
    with pytest.raises(ArtifactError) as refusal:
        ArtifactStore(store.root).path(artifact)
    assert str(refusal.value) == f"pair {artifact.uri} is damaged: expected {artifact.sha256}, found {difference}"


def test_a_folder_that_another_run_publishes_in_the_same_moment_is_taken(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
):
    """It appears between the check and the rename: a complete one is the artifact, an incomplete one is damage."""
    rename = os.replace

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", rename)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*lost))
        rename(source, target)

    lost: tuple[str, ...] = ()
    monkeypatch.setattr(os, "replace", late)
    artifact = _folder(store)
    assert (store.path(artifact) / "a").read_text() == "1"
    shutil.rmtree(artifact.uri)
    lost = ("b",)
    monkeypatch.setattr(os, "replace", late)
    with pytest.raises(ArtifactError, match="differ from the manifest"):
        _folder(store)


def test_a_failed_rename_is_an_error(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch):
    """An error of the disk is raised unchanged, and nothing is published."""

    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="input/output error"):
        _text(store, "x")
    assert not list((Path(store.root) / "note").iterdir())


def test_a_fetched_copy_on_a_full_disk_names_the_folder(small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    """2 MiB from an object store onto a disk of 1 MiB: the folder for copies is named, and no part of one is left."""
    away = ArtifactStore("memory://large/artifacts")
    with away.new_file("blob", ".bin") as new:
        new.path.write_bytes(bytes(2 * 2**20))
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(StorageError, match=rf"cannot write {small_disk}/grpo-\d+/fetched.*: the disk is full"):
        ArtifactStore(away.uri).path(new.artifact)
    assert not [path for path in small_disk.rglob("*") if path.is_file()]


def test_a_copy_that_another_process_removes_in_the_same_moment_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its record is listed and missing when it is read, like a broken link."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    away = ArtifactStore("memory://forgotten/artifacts")
    _text(away, "x")
    (user_temp_folder() / "fetched" / "other.txt.marks").symlink_to(tmp_path / "nowhere")
    assert away.path(_text(away, "y")).read_text() == "y"


@pytest.mark.parametrize("name", ["BOX", "box "])
def test_the_root_of_a_store_is_its_path_without_the_last_slash(tmp_path: Path, name: str):
    """With any last letter, also a blank."""
    store = ArtifactStore(f"{tmp_path}/{name}/")
    assert store.root == f"{tmp_path}/{name}"
    note = _text(store, "x")
    assert stored_artifact(store, f"note/{note.uri.rsplit('/', 1)[1]}") == note


class CountedFileSystem(MemoryFileSystem):
    """An object store that counts what is fetched from it."""

    protocol = "counted"
    fetched: ClassVar[list[str]] = []

    def get_file(self, rpath: Any, lpath: Any, **options: Any) -> None:
        """Fetch one object."""
        self.fetched.append(Path(rpath).name)
        super().get_file(rpath, lpath, **options)


def test_what_this_machine_has_stored_or_fetched_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its own copy is used; another machine fetches a file, and a folder's files but the manifest, once."""
    fsspec.register_implementation("counted", CountedFileSystem, clobber=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here"))
    store = ArtifactStore("counted://bucket/artifacts")
    note, pair = _text(store, "x"), _folder(store)
    for artifact in (note, pair, note):
        store.path(artifact)
    assert CountedFileSystem.fetched == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "there"))
    other = ArtifactStore("counted://bucket/artifacts")
    for artifact in (note, pair, note, pair):
        other.path(artifact)
    assert sorted(CountedFileSystem.fetched) == sorted([Path(note.uri).name, "a", "b"])


def test_a_changed_manifest_of_an_object_store_is_found_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a machine that has no copy: what is there instead."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here"))
    store = ArtifactStore("memory://manifests/artifacts")
    artifact = _folder(store)
    fsspec.filesystem("memory").pipe_file(f"{artifact.uri}/{MANIFEST}", b"{}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "there"))
    with pytest.raises(ArtifactError) as refusal:
        ArtifactStore(store.uri).path(artifact)
    changed = hashlib.sha256(b"{}").hexdigest()
    assert str(refusal.value) == f"pair {artifact.uri} is damaged: expected {artifact.sha256}, found {changed}"


def test_a_temporary_folder_that_cannot_be_written_is_named(small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    """A read-only disk: the folder of this user cannot be made there."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(StorageError, match=rf"^cannot write {small_disk}/grpo-\d+: the file system is read-only"):
        user_temp_folder()
