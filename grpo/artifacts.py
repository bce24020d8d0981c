"""Content-addressed artifacts exchanged by stages, verified by digest before they are read.

A writer works in a staging place, and the result is renamed or uploaded into place, so that no reader sees a
half-written artifact. A folder's manifest holds the digest of each of its files. The folder's digest is the digest of
its manifest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict, Field

from grpo.errors import ArtifactError, ConfigError, ErasedError, RemovedError
from grpo.storage.digests import MANIFEST, file_states, folder_digests, note_digest, present_digest
from grpo.storage.documents import DocumentStore
from grpo.storage.fetched import etags_file, forget_unused, read_etags, user_temp_folder
from grpo.storage.files import file_digest, storage_errors, write_atomically
from grpo.storage.home import home
from grpo.storage.locks import remove, scratch_path
from grpo.storage.moved import former_homes
from grpo.storage.moved_stores import present_address
from grpo.storage.objects import ObjectFolder, open_uri
from grpo.storage.shipped import SCHEME, shipped_file

_DIGITS = 20


class Artifact(BaseModel):
    """A file or folder in the store, by its content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    sha256: str = Field(pattern=r"^[\w-]{1,64}$")  # it names files, so that it must be no path
    kind: str = Field(pattern=r"^\w[\w.-]*$")


class NewArtifact:
    """An artifact while it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """Staging path. A folder already exists there, a file does not."""
        self.stored: Artifact | None = None
        self.kept = True
        """Set to False in the block if there is nothing to store. Then the folder is dropped when the block ends."""

    @property
    def artifact(self) -> Artifact:
        """The artifact, after the block."""
        if self.stored is None:
            raise ArtifactError(f"{self.path} is not stored yet: leave the block of new_file or new_folder first")
        return self.stored


class ArtifactStore:
    """Content-addressed artifacts under an fsspec URI. A plain path means a local folder.

        runs/artifacts/rollout/3fa1….parquet          a file
        runs/artifacts/checkpoint/77be…/manifest.json   a folder

    In an object store the manifest is uploaded last, because a folder without a manifest does not exist. Downloads are
    cached in a folder of this user for a week after their last use, and downloaded again if the object has changed.

    Raises `StorageError` if the store cannot be written, `ArtifactError` if an artifact is missing or damaged,
    `ConnectionError` if an object store cannot be reached, and `ConfigError` if the address is invalid.
    """

    def __init__(self, uri: str) -> None:
        file_system, root = open_uri(uri)
        self.root = root.rstrip("/")
        self._objects = None if isinstance(file_system, LocalFileSystem) else ObjectFolder(file_system, self.root)
        self.uri = self._objects.uri if self._objects else self.root
        self.documents = DocumentStore(uri)

    @property
    def is_local(self) -> bool:
        """True for a folder of this machine."""
        return self._objects is None

    @contextmanager
    def new_file(self, kind: str, suffix: str) -> Iterator[NewArtifact]:
        """Store the file that the block writes at `path`. If the block raises, nothing is stored.

        with store.new_file("split", ".json") as new:
            new.path.write_text(text)
        new.artifact
        """
        with self._stage() as staged:
            yield (new := NewArtifact(staged))
            digest = file_digest(staged)
            new.stored = self._publish(staged, f"{kind}/{digest[:_DIGITS]}{suffix}", digest, kind)

    @contextmanager
    def new_folder(self, kind: str, *, like: Artifact | None = None) -> Iterator[NewArtifact]:
        """Store the folder that the block fills at `path`. Its manifest is written last. See `new_file`.

        `like` is a folder that probably shares files with the new one, such as the checkpoint before it. An object
        store copies these files itself, so that they are not uploaded again.
        """
        with self._stage() as staged:
            staged.mkdir()
            yield (new := NewArtifact(staged))
            if not new.kept:
                return
            manifest = json.dumps(folder_digests(staged), indent=1, sort_keys=True).encode()
            (staged / MANIFEST).write_bytes(manifest)
            digest = hashlib.sha256(manifest).hexdigest()
            new.stored = self._publish(staged, f"{kind}/{digest[:_DIGITS]}", digest, kind, like=like)

    def folder(self, kind: str, sha256: str) -> Artifact:
        """Folder of this kind with this digest, as `new_folder` names it. It may be missing."""
        return Artifact(uri=f"{self.uri}/{kind}/{sha256[:_DIGITS]}", sha256=sha256, kind=kind)

    def address(self, artifact: Artifact) -> str:
        """Address of an artifact in a config: its local path, or its URI and digest in an object store."""
        return str(self.path(artifact)) if self.is_local else f"{artifact.uri}#{artifact.sha256}"

    def has(self, artifact: Artifact) -> bool:
        """Return True if the artifact is in this store under its digest, or `remove` has removed it from there."""
        name = _content_name(artifact)
        return name is not None and (self._is_there(name) or self.documents.read(_removal(artifact)) is not None)

    def own(self, artifact: Artifact) -> Artifact:
        """The artifact with its address in this store, because artifacts have other addresses if a store was moved."""
        name = _content_name(artifact)
        return artifact if name is None else artifact.model_copy(update={"uri": f"{self.uri}/{name}"})

    def path(self, artifact: Artifact) -> Path:
        """Return a verified local path of the artifact. Objects that do not change are downloaded once."""
        name = self._name(artifact)
        path = self._fetch(artifact, name) if self._objects else Path(self.root) / name
        self._check(path, artifact)
        return path

    def verify(self, artifact: Artifact) -> None:
        """Raise `ArtifactError` unless the artifact matches its digest or `remove` has removed it."""
        with suppress(RemovedError):
            self.path(artifact)

    def remove(self, artifact: Artifact) -> bool:
        """Remove an artifact that can be recomputed. Returns False if it is missing.

        The record of the removal is written first, so that `path` raises `RemovedError` and `verify` passes.
        """
        name = self._name(artifact)
        if not self._is_there(name):
            return False
        self.documents.write(_removal(artifact), artifact.model_dump())
        if self._objects is not None:
            self._objects.remove(name)
        else:
            with self._stage() as leaving, suppress(FileNotFoundError):  # another run has removed it as well
                os.replace(Path(self.root) / name, leaving)  # atomic, also when the process is killed
        return True

    def is_removed(self, artifact: Artifact) -> bool:
        """Return True if `remove` has removed the artifact, False if it is present or missing."""
        return not self._is_there(self._name(artifact)) and self.documents.read(_removal(artifact)) is not None

    def forget_removal(self, artifact: Artifact) -> None:
        """Treat a removed artifact as missing, so that its stage computes it again."""
        self.documents.remove(_removal(artifact))

    def erase(self, artifact: Artifact, remaining: Artifact | None) -> None:
        """Remove an artifact and this user's copy of it for good. `path` and `verify` then raise `ErasedError`.

        The argument `remaining` is the artifact without the erased content. The method `remaining` then returns it.
        """
        kept = None if remaining is None else remaining.model_dump()
        self.documents.write(_erasure(artifact), {"artifact": artifact.model_dump(), "remaining": kept})
        name = self._name(artifact)
        if self._objects is not None:
            self._objects.remove(name)
            remove(_kept(artifact))
            etags_file(_kept(artifact)).unlink(missing_ok=True)
        else:
            with self._stage() as leaving, suppress(FileNotFoundError):
                os.replace(Path(self.root) / name, leaving)

    def remaining(self, artifact: Artifact) -> Artifact:
        """The artifact itself, or if content of it was erased, the artifact that has replaced it."""
        while (document := self.documents.read(_erasure(artifact))) is not None and document["remaining"]:
            artifact = Artifact.model_validate(document["remaining"])
        return artifact

    def is_erased(self, artifact: Artifact) -> bool:
        """True if some content of the artifact was erased."""
        return self.documents.read(_erasure(artifact)) is not None

    def _is_there(self, name: str) -> bool:
        return bool(self._objects.etags(name)) if self._objects else (Path(self.root) / name).exists()

    def _missing(self, artifact: Artifact) -> ArtifactError:
        """Error for a missing, removed or erased artifact."""
        if self.is_erased(artifact):
            return ErasedError(f"{artifact.kind} {artifact.uri} was erased, because a user asked for it")
        if self.documents.read(_removal(artifact)) is not None:
            return RemovedError(f"{artifact.kind} {artifact.uri} was removed, because no run or version references it")
        return ArtifactError(f"{artifact.kind} {artifact.uri} is missing")

    @contextmanager
    def _stage(self) -> Iterator[Path]:
        staging = user_temp_folder() / "staging" if self._objects else Path(self.root) / ".staging"
        with storage_errors(str(staging) if self._objects else self.root), scratch_path(staging) as staged:
            yield staged

    def _publish(self, staged: Path, name: str, digest: str, kind: str, *, like: Artifact | None = None) -> Artifact:
        artifact = Artifact(uri=f"{self.uri}/{name}", sha256=digest, kind=kind)
        if self._objects is None:
            self._settle(staged, Path(self.root) / name, artifact)
            return artifact
        if self._is_unchanged(artifact, name):
            return artifact
        if staged.is_dir():
            files: dict[str, str] = json.loads((staged / MANIFEST).read_bytes())
            objects = {} if like is None else self._objects_of(like)
            sources = {file: objects[digest] for file, digest in files.items() if digest in objects}
            self._objects.upload(staged, name, sorted(files), last=MANIFEST, sources=sources)
        else:
            self._objects.upload_file(staged, name)
        self._keep(staged, artifact, self._objects.etags(name))
        return artifact

    def _is_unchanged(self, artifact: Artifact, name: str) -> bool:
        """True if the objects are the ones that this machine has a verified copy of."""
        assert self._objects is not None
        place = _kept(artifact)
        if not place.exists() or read_etags(place) != {"uri": artifact.uri, "etags": self._objects.etags(name)}:
            return False
        try:
            self._check(place, artifact)
        except ArtifactError:
            return False
        return True

    def _objects_of(self, folder: Artifact) -> dict[str, str]:
        """Object with each content of a stored folder, by sha256. None of a folder that has changed or is elsewhere."""
        name = _content_name(folder)
        if name is None or folder.uri != f"{self.uri}/{name}" or not self._is_unchanged(folder, name):
            return {}
        files: dict[str, str] = json.loads((_kept(folder) / MANIFEST).read_bytes())
        return {digest: f"{name}/{file}" for file, digest in files.items()}

    def _settle(self, staged: Path, place: Path, artifact: Artifact) -> None:
        """Rename into place, unless an undamaged copy is there already."""
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            try:
                self._check(place, artifact)
                return
            except ArtifactError:
                remove(place)
        states = file_states(staged)
        try:
            os.replace(staged, place)
            note_digest(place, artifact.sha256, states)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._check(place, artifact)  # another run published the same folder in this moment

    def _name(self, artifact: Artifact) -> str:
        """Path of the artifact below the store, by its address, or by its digest if the store was moved."""
        _, path = open_uri(artifact.uri)
        top = os.path.normpath(self.root) + os.sep
        if os.path.normpath(path).startswith(top):
            return os.path.normpath(path)[len(top) :]
        if (name := _content_name(artifact)) is not None and self.has(artifact):
            return name
        raise ArtifactError(f"artifact {artifact.uri} is outside the store {self.uri}")

    def _fetch(self, artifact: Artifact, name: str) -> Path:
        """Return the local copy. It is downloaded again if the objects have changed."""
        assert self._objects is not None
        place, etags = _kept(artifact), self._objects.etags(name)
        if not etags:
            raise self._missing(artifact)
        if place.exists() and read_etags(place) == {"uri": artifact.uri, "etags": etags}:
            etags_file(place).touch()
            return place
        with storage_errors(str(place.parent)):
            place.parent.mkdir(parents=True, exist_ok=True)
            partial = place.with_name(uuid.uuid4().hex)
            try:
                if "" in etags:
                    self._objects.download_file(name, partial)
                else:
                    self._fetch_folder(artifact, name, partial)
                self._check(partial, artifact)
                self._keep(partial, artifact, etags)
            except FileNotFoundError as error:
                raise ArtifactError(f"{artifact.kind} {artifact.uri} is missing, or a part of it") from error
            finally:
                remove(partial)
        return place

    def _fetch_folder(self, artifact: Artifact, name: str, partial: Path) -> None:
        """Download the files of the manifest, after the manifest itself is verified by the artifact's digest."""
        assert self._objects is not None
        manifest = self._objects.read(f"{name}/{MANIFEST}")
        digest = hashlib.sha256(manifest).hexdigest()
        if digest != artifact.sha256:
            raise _damaged(artifact, digest)
        files = list(json.loads(manifest))
        if any(Path(file).is_absolute() or ".." in Path(file).parts for file in files):
            raise _damaged(artifact, "a manifest that names files outside")
        partial.mkdir()
        self._objects.download(name, files, partial)
        (partial / MANIFEST).write_bytes(manifest)

    def _keep(self, staged: Path, artifact: Artifact, etags: dict[str, str]) -> None:
        """Store this file or folder as the local copy of objects with these ETags."""
        place = _kept(artifact)
        self._settle(staged, place, artifact)
        write_atomically(etags_file(place), json.dumps({"uri": artifact.uri, "etags": etags}))
        forget_unused(place.parent)

    def _check(self, path: Path, artifact: Artifact) -> None:
        """Compare digests. A process does this once, unless the files change."""
        if not path.exists():
            raise self._missing(artifact)
        actual = present_digest(path)
        if actual != artifact.sha256:
            raise _damaged(artifact, actual)


def store_of(artifact: Artifact) -> ArtifactStore:
    """The store that holds an artifact: this home's, one that was moved, or the store that its address names."""
    address = present_address(artifact.uri.rsplit("/", 2)[0])
    places = [str(home() / "artifacts")]
    if "://" not in address:
        places += [os.path.normpath(home() / os.path.relpath(address, former)) for former in former_homes()]
    return next((store for place in places if (store := ArtifactStore(place)).has(artifact)), ArtifactStore(address))


def stored_artifact(store: ArtifactStore, name: str) -> Artifact:
    """The artifact at `kind/name` below a store, by its present digest. Raises `ArtifactError` if it has none."""
    file_system, root = open_uri(store.uri)
    place = f"{root.rstrip('/')}/{name}"
    content = f"{place}/{MANIFEST}" if file_system.isdir(place) else place
    try:
        with file_system.open(content, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise ArtifactError(f"{store.uri}/{name} was deleted, or its upload was cut off") from error
    return Artifact(uri=f"{store.uri}/{name}", sha256=digest, kind=name.partition("/")[0])


def local_path(address: str) -> Path:
    """Return the local path of a file or folder by its `ArtifactStore.address` in a config.

        data/models/desk_clerk                    itself
        grpo://models/desk_clerk                  the shipped one
        s3://grpo/runs/model/3fa1…#3fa1c0…        downloaded and verified by the digest

    Raises `ConfigError` for a URI without a digest, and what `ArtifactStore` raises.
    """
    if address.startswith(SCHEME):
        return shipped_file(address)
    if "://" not in address:
        return Path(address)
    uri, _, digest = address.partition("#")
    parts = uri.rsplit("/", 2)
    if not digest or len(parts) < 3:
        raise ConfigError(f"{uri} is not the address of an artifact. Write the URI in a store, then # and the sha256")
    return ArtifactStore(parts[0]).path(Artifact(uri=uri, sha256=digest, kind=parts[1]))


def _content_name(artifact: Artifact) -> str | None:
    """Path of the artifact below any store, by its digest, or None if its address does not name an artifact."""
    parts = artifact.uri.rsplit("/", 2)
    is_named = len(parts) == 3 and parts[1] == artifact.kind and parts[2].startswith(artifact.sha256[:_DIGITS])
    return "/".join(parts[1:]) if is_named and len(artifact.sha256) > _DIGITS else None


def _removal(artifact: Artifact) -> str:
    return f"removed/{artifact.sha256}"


def _erasure(artifact: Artifact) -> str:
    return f"erased/{artifact.sha256}"


def _kept(artifact: Artifact) -> Path:
    """Path of the local copy of an artifact of an object store."""
    return user_temp_folder() / "fetched" / f"{artifact.sha256}{Path(artifact.uri).suffix}"


def _damaged(artifact: Artifact, actual: str) -> ArtifactError:
    return ArtifactError(f"{artifact.kind} {artifact.uri} is damaged: expected {artifact.sha256}, found {actual}")
