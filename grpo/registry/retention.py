"""Retention of artifacts by reference: an artifact is removed when its last owner releases it.

    kept/run.quickstart/3fa1…            one of the newest checkpoints of the run of this name
    kept/registered/3fa1…                referenced by a registered version
    kept/days.2026-11-26/curate_day-…    result of this identity, which a check of the triggers used on this day
    removed/77be…                        removed, and recomputed from the base when it is needed

The record of a removal is written before the artifact is removed, so that a run can distinguish a removed checkpoint
from a lost one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

from grpo.artifacts import Artifact, ArtifactStore

_KEPT = "kept"
REGISTERED = "registered"
"""Owner of the checkpoints of registered versions."""


def run_owner(name: str) -> str:
    """Owner name of a run's checkpoints."""
    return f"run.{name}"


class Retention:
    """References to the artifacts of one store."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._documents = store.documents

    def keep(self, artifact: Artifact, owner: str) -> None:
        """Add a reference of this owner."""
        name = self._name(artifact, owner)
        if self._documents.read(name) is None:
            self._documents.write(name, artifact.model_dump())

    def kept(self, owner: str) -> list[Artifact]:
        """Artifacts that this owner references, with their addresses in this store."""
        artifacts = map(self._read, self._documents.names(f"{_KEPT}/{owner}"))
        return [artifact for artifact in artifacts if artifact is not None]

    def release(self, artifact: Artifact, owner: str) -> bool:
        """Remove this owner's reference, and the artifact if it was the last one. True if the artifact was removed."""
        self._documents.remove(self._name(artifact, owner))
        if any(name.endswith(f"/{artifact.sha256}") for name in self._documents.names(_KEPT, depth=2)):
            return False
        return self._store.remove(artifact)

    def renew(self, owner: str, results: Mapping[str, Artifact], *, today: date) -> list[Artifact]:
        """Keep results by their cache identity for today and tomorrow, and remove results that were last kept earlier.

        If a removed result is needed again, it is computed again, so no record of its removal is kept. Returns the
        artifacts that were removed.
        """
        for key, artifact in results.items():
            name = f"{_KEPT}/{owner}.{today.isoformat()}/{key}"
            if self._documents.read(name) is None:
                self._documents.write(name, artifact.model_dump())
        first = f"{_KEPT}/{owner}.{(today - timedelta(days=1)).isoformat()}/"
        names = self._documents.names(_KEPT, depth=2)
        expired = [name for name in names if name.startswith(f"{_KEPT}/{owner}.") and name < first]
        if not expired:
            return []
        others = set(names).difference(expired)
        kept = {artifact.sha256 for artifact in map(self._read, others) if artifact is not None}
        used = {name.rpartition("/")[2] for name in others}
        removed = []
        for name in expired:
            last, key = self._read(name), name.rpartition("/")[2]
            if key not in used:
                self._documents.remove(f"results/{key}")
            if last is not None and last.sha256 not in kept and self._store.remove(last):
                self._store.forget_removal(last)
                removed.append(last)
            self._documents.remove(name)
        return removed

    def _read(self, name: str) -> Artifact | None:
        document = self._documents.read(name)
        return None if document is None else self._store.own(Artifact.model_validate(document))

    def _name(self, artifact: Artifact, owner: str) -> str:
        return f"{_KEPT}/{owner}/{artifact.sha256}"
