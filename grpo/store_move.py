"""Move of an artifact store to another address, e.g. from the folder of one machine to a bucket of a team.

    artifacts    read, compared with their digests, written and compared again; skipped if the target has them
    documents    results of stages, references to checkpoints, records of removals and erasures: copied unchanged
    other files  left in the source, and named

Stages find their results by digest, and versions their checkpoints, so that nothing is computed twice. If a move is
interrupted, repeat it: it skips what was copied. The source is emptied only when the target has everything. Several
moves of a home happen one after the other.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo import progress
from grpo.artifacts import Artifact, ArtifactStore, stored_artifact
from grpo.errors import ArtifactError, ConfigError, StorageError
from grpo.storage.digests import MANIFEST
from grpo.storage.documents import Document, is_document_name
from grpo.storage.home import home
from grpo.storage.locks import file_lock
from grpo.storage.moved_stores import note_move, present_address
from grpo.storage.objects import open_uri

_ARTIFACT = re.compile(r"(?P<name>[^/]+/[0-9a-f]{20}(?:\.\w+)?)(?:/.*)?")
_STAGING = ".staging"
_PASSES = 3
"""Times that the source is listed. After that, the move no longer waits for a run that still writes to it."""


class StoreMove(Document):
    """Result of a move, or of a dry run that only lists what a move would do."""

    source: str
    target: str
    artifacts: int
    """Artifacts that were written."""
    present: int
    """Artifacts that the target had."""
    documents: int
    damaged: tuple[str, ...]
    """Artifacts and documents that do not match their digests. They stay, and their stages compute them again."""
    left: tuple[str, ...]
    """Files in the source that do not belong to a store."""


@dataclass(slots=True)
class _Content:
    """Names below a store."""

    artifacts: set[str] = field(default_factory=set)
    documents: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


def move_store(source: str, target: str, *, keep: bool = False, dry_run: bool = False) -> StoreMove:
    """Move everything of one store into another one, and let this home find it there. `keep` leaves the source.

    Raises `ConfigError` if both addresses name one store or one lies in the other, `StorageError` if the target cannot
    be written or a run keeps writing to the source during the move, and `ConnectionError`.
    """
    before, after = ArtifactStore(source), ArtifactStore(target)
    if f"{before.uri}/".startswith(f"{after.uri}/") or f"{after.uri}/".startswith(f"{before.uri}/"):
        raise ConfigError(f"{before.uri} and {after.uri} contain each other. Name two separate places")
    _content_of(before, after)  # before the lock, because a refused move leaves no file in a new home
    with nullcontext() if dry_run else file_lock(home() / "stores.lock"):
        return _move(before, after, keep=keep, dry_run=dry_run)


def _move(before: ArtifactStore, after: ArtifactStore, *, keep: bool, dry_run: bool) -> StoreMove:
    mover = _Mover(before, after, dry_run=dry_run)
    moved: set[str] = set()
    content = _content_of(before, after)
    for _ in range(_PASSES):
        names = [*sorted(content.artifacts - moved), *sorted(content.documents - moved)]  # results name artifacts
        for number, name in enumerate(names):
            progress.report("move", number, len(names))
            (mover.artifact if name in content.artifacts else mover.document)(name)
        progress.report("move", len(names), len(names))
        moved |= content.artifacts | content.documents
        content = content if dry_run else _content(before)
        if not (content.artifacts | content.documents) - moved:
            break
    else:
        raise StorageError(f"something writes to {before.uri} all the time: end the runs that do, and move it again")
    if not dry_run:
        note_move(before.uri, after.uri)
        if not keep:
            _empty(before, moved - mover.damaged)
    return StoreMove(
        source=before.uri,
        target=after.uri,
        artifacts=mover.written,
        present=mover.present,
        documents=mover.documents,
        damaged=tuple(sorted(mover.damaged)),
        left=tuple(sorted(content.others)),
    )


def sign_store(address: str, *, dry_run: bool = False) -> int:
    """Sign the documents that an earlier version wrote into a store with trusted writers. Returns their number.

    If `dry_run` is True, they are only counted.
    """
    store = ArtifactStore(address)
    if (content := _content(store)) == _Content():
        raise _no_store(store.uri)
    return sum(store.documents.sign(name, dry_run=dry_run) for name in sorted(content.documents))


class _Mover:
    """Copies of the entries of one store in another."""

    def __init__(self, source: ArtifactStore, target: ArtifactStore, *, dry_run: bool) -> None:
        self._source, self._target, self._dry_run = source, target, dry_run
        self.written = self.present = self.documents = 0
        self.damaged: set[str] = set()

    def artifact(self, name: str) -> None:
        """Copy an artifact, unless the target has it."""
        undamaged = _undamaged(self._source, name)
        if undamaged is None:
            if _undamaged(self._target, name) is None:
                self.damaged.add(name)
            else:  # a move was interrupted while it removed this artifact
                self.present += 1
            return
        artifact, path = undamaged
        if self._has(artifact):
            self.present += 1
            return
        self.written += 1
        if not self._dry_run:
            self._copy(artifact, path)

    def document(self, name: str) -> None:
        """Copy a document."""
        try:
            content = self._source.documents.read(name)
        except ArtifactError:
            self.damaged.add(name)
            return
        self.documents += 1
        if not self._dry_run and content is not None:
            self._target.documents.write(name, content)

    def _has(self, artifact: Artifact) -> bool:
        """True if the artifact is in the target undamaged. False if it was removed there."""
        try:
            self._target.path(self._target.own(artifact))
        except ArtifactError:
            return False
        return True

    def _copy(self, artifact: Artifact, path: Path) -> None:
        if path.is_dir():
            with self._target.new_folder(artifact.kind) as new:
                shutil.copytree(path, new.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        else:
            with self._target.new_file(artifact.kind, path.suffix) as new:
                shutil.copyfile(path, new.path)
        if new.artifact.sha256 != artifact.sha256:
            raise StorageError(f"{new.artifact.uri} differs from {artifact.uri}, which it is a copy of. Move again")


def _undamaged(store: ArtifactStore, name: str) -> tuple[Artifact, Path] | None:
    """An artifact and its content, or None if the content has another digest than the name, or was removed."""
    try:
        artifact = stored_artifact(store, name)
        return (artifact, store.path(artifact)) if store.has(artifact) else None
    except ArtifactError:
        return None


def _no_store(address: str) -> ConfigError:
    present = present_address(address)
    moved = "" if present == address else f". Its content was moved to {present}"
    return ConfigError(f"there is no store at {address}, or it is empty{moved}. Name the `store` of your configs")


def _content_of(before: ArtifactStore, after: ArtifactStore) -> _Content:
    """Content of the source. Raises `ConfigError` if it has none, and if it was not moved to the target either."""
    content = _content(before)
    if content == _Content() and present_address(before.uri) != after.uri:
        raise _no_store(before.uri)
    return content


def _content(store: ArtifactStore) -> _Content:
    content = _Content()
    for name in _files(store):
        top = _ARTIFACT.fullmatch(name)
        if name.split("/")[0] == _STAGING:
            continue
        if top is not None:
            content.artifacts.add(top["name"])
        elif is_document_name(name.removesuffix(".json")) and name.endswith(".json"):
            content.documents.add(name.removesuffix(".json"))
        else:
            content.others.add(name)
    return content


def _files(store: ArtifactStore) -> Iterator[str]:
    """Names of all files below a store."""
    file_system, root = open_uri(store.uri)
    store.documents.names("results")  # an object store that cannot be reached is an error with a remedy here
    for name in file_system.find(root.rstrip("/"), withdirs=False):
        yield name[len(root.rstrip("/")) + 1 :]


def _empty(store: ArtifactStore, names: set[str]) -> None:
    """Remove these artifacts and documents, and the folders that are empty then."""
    file_system, root = open_uri(store.uri)
    for name in sorted(names):
        place: Any = f"{root.rstrip('/')}/{name}"
        with suppress(FileNotFoundError):
            file_system.rm(place if _ARTIFACT.fullmatch(name) else f"{place}.json", recursive=True)
    if store.is_local:
        for folder in sorted((path for path in Path(store.root).rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):  # it is not empty
                folder.rmdir()
