"""What stages exchange: files and folders named by their content, verified before they are read.

A writer works in a staging place and the result is renamed into place, so a half-written artifact is never
seen. A folder's manifest holds the digest of each of its files; the folder's digest is the manifest's.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict

from grpo.errors import ArtifactError, StorageError

MANIFEST = "manifest.json"
_DIGITS = 20
_REMEDIES = {
    errno.ENOSPC: "the disk is full: free space or set `store` to another disk",
    errno.EDQUOT: "the quota is used up: free space or set `store` elsewhere",
    errno.EROFS: "the store is read-only: set `store` to a writable folder",
    errno.EACCES: "the store may not be written: fix its permissions or set `store` elsewhere",
    errno.EPERM: "the store may not be written: fix its permissions or set `store` elsewhere",
}


class Artifact(BaseModel):
    """A file or folder in the store, by its content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    sha256: str
    kind: str


class ArtifactStore:
    """Content-addressed artifacts under an fsspec URI; a plain path means a local folder.

        runs/artifacts/rollout/3fa1….parquet          a file
        runs/artifacts/checkpoint/77be…/manifest.json   a folder

    Raises `StorageError` when the store cannot be written, `ArtifactError` when an artifact is missing or damaged.
    """

    def __init__(self, uri: str) -> None:
        self._fs, root = fsspec.core.url_to_fs(uri)
        self.root = root.rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)
        self._staging = Path(self.root) / ".staging" if self._local else Path(tempfile.gettempdir()) / "grpo-staging"
        self._fetched = Path(tempfile.gettempdir()) / f"grpo-fetched-{os.getuid()}"
        self._verified: dict[str, tuple[str, float]] = {}

    def put_file(self, kind: str, suffix: str, write: Callable[[Path], None]) -> Artifact:
        """Store the file that `write` makes at the path it is given."""
        with self._stage() as staged:
            write(staged)
            digest = _file_digest(staged)
            return self._publish(staged, f"{kind}/{digest[:_DIGITS]}{suffix}", digest, kind)

    def put_folder(self, kind: str, write: Callable[[Path], None]) -> Artifact:
        """Store the folder that `write` fills; its manifest is written last."""
        with self._stage() as staged:
            staged.mkdir()
            write(staged)
            manifest = json.dumps(_folder_digests(staged), indent=1, sort_keys=True).encode()
            (staged / MANIFEST).write_bytes(manifest)
            digest = hashlib.sha256(manifest).hexdigest()
            return self._publish(staged, f"{kind}/{digest[:_DIGITS]}", digest, kind)

    def folder(self, kind: str, sha256: str) -> Artifact:
        """The folder of this kind with this digest, as `put_folder` names it; `path` says whether it is there."""
        target = f"{self.root}/{kind}/{sha256[:_DIGITS]}"
        return Artifact(uri=target if self._local else self._fs.unstrip_protocol(target), sha256=sha256, kind=kind)

    def path(self, artifact: Artifact) -> Path:
        """A local path of the artifact, verified; remote artifacts are fetched once."""
        path = self._confined(artifact)
        if not self._local:
            path = self._fetch(artifact)
        self._check(path, artifact)
        return path

    def verify(self, artifact: Artifact) -> None:
        """Raise `ArtifactError` unless the artifact is there and is what its digest says."""
        self.path(artifact)

    @contextmanager
    def _stage(self) -> Iterator[Path]:
        staged = self._staging / uuid.uuid4().hex
        try:
            with storage_errors(self.root):
                self._staging.mkdir(parents=True, exist_ok=True)
                yield staged
        finally:
            _remove(staged)

    def _publish(self, staged: Path, name: str, digest: str, kind: str) -> Artifact:
        target = f"{self.root}/{name}"
        artifact = Artifact(uri=target if self._local else self._fs.unstrip_protocol(target), sha256=digest, kind=kind)
        if not self._local:
            self._fs.put(str(staged), target, recursive=staged.is_dir())
            return artifact
        place = Path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            try:
                self._check(place, artifact)
                return artifact
            except ArtifactError:
                _remove(place)
        try:
            os.replace(staged, place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._check(place, artifact)  # another run published the same folder in this moment
        return artifact

    def _confined(self, artifact: Artifact) -> Path:
        _, path = fsspec.core.url_to_fs(artifact.uri)
        if not os.path.normpath(path).startswith(os.path.normpath(self.root) + os.sep):
            raise ArtifactError(f"artifact {artifact.uri} is outside the store {self.root}")
        return Path(path)

    def _fetch(self, artifact: Artifact) -> Path:
        place = self._fetched / f"{artifact.sha256}{Path(artifact.uri).suffix}"
        if not place.exists():
            partial = place.with_name(uuid.uuid4().hex)
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fs.get(artifact.uri, str(partial), recursive=self._fs.isdir(artifact.uri))
            except FileNotFoundError as error:
                raise ArtifactError(f"{artifact.kind} {artifact.uri} is missing") from error
            os.replace(partial, place)
        return place

    def _check(self, path: Path, artifact: Artifact) -> None:
        """Compare digests, once for each modification time."""
        if not path.exists():
            raise ArtifactError(f"{artifact.kind} {artifact.uri} is missing")
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        stamp = max((p.stat().st_mtime for p in files), default=0.0)
        if self._verified.get(str(path)) == (artifact.sha256, stamp):
            return
        if path.is_dir():
            manifest = path / MANIFEST
            found = _file_digest(manifest) if manifest.is_file() else "no manifest"
            if found == artifact.sha256 and json.loads(manifest.read_bytes()) != _folder_digests(path):
                found = "files that differ from the manifest"
        else:
            found = _file_digest(path)
        if found != artifact.sha256:
            raise ArtifactError(f"{artifact.kind} {artifact.uri} is damaged: expected {artifact.sha256}, found {found}")
        self._verified[str(path)] = (artifact.sha256, stamp)


@contextmanager
def storage_errors(place: str) -> Iterator[None]:
    """Turn a full disk, a read-only store and missing permissions into a `StorageError` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _REMEDIES:
            raise StorageError(f"cannot write {place}: {_REMEDIES[error.errno]}") from error
        raise


def write_atomically(path: Path, content: str) -> None:
    """Write a text file so that a reader sees the old content or the new one, never a part."""
    with storage_errors(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            partial.write_text(content, encoding="utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder_digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): _file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
