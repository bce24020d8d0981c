"""Retention of checkpoints: which stay in the store, for whom, and what has been removed.

    kept/run.support-desk/3fa1…      the run of this name goes on from this checkpoint
    kept/registered/3fa1…            a registered version needs it
    removed/77be…                    it had no keeper left: it is made again from the rollouts when it is needed

A checkpoint is removed when its last keeper lets it go. The record of the removal is written first, so that a run that
finds the checkpoint missing knows that it can be made again.
"""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore

_KEPT = "kept"
REGISTERED = "registered"
"""Keeper of what registered versions need."""


def run_owner(name: str) -> str:
    """Keeper of the checkpoints of the run of this name."""
    return f"run.{name}"


class Retention:
    """The keepers of the checkpoints in one store."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._documents = store.documents

    def keep(self, artifact: Artifact, owner: str) -> None:
        """Let an artifact stay until this keeper lets it go."""
        name = self._name(artifact, owner)
        if self._documents.read(name) is None:
            self._documents.write(name, artifact.model_dump())

    def kept(self, owner: str) -> list[Artifact]:
        """Artifacts that this keeper holds."""
        documents = map(self._documents.read, self._documents.names(f"{_KEPT}/{owner}"))
        return [Artifact.model_validate(document) for document in documents if document is not None]

    def release(self, artifact: Artifact, owner: str) -> bool:
        """Let an artifact go; it is removed, and True returned, where nothing else keeps it."""
        self._documents.remove(self._name(artifact, owner))
        if any(name.endswith(f"/{artifact.sha256}") for name in self._documents.names(_KEPT)):
            return False
        return self._store.remove(artifact)

    def _name(self, artifact: Artifact, owner: str) -> str:
        return f"{_KEPT}/{owner}/{artifact.sha256}"
