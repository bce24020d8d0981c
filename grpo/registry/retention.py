"""Retention of checkpoints by reference: a checkpoint is removed when its last owner releases it.

    kept/run.quickstart/3fa1…        one of the newest checkpoints of the run of this name
    kept/registered/3fa1…            referenced by a registered version
    removed/77be…                    removed; recomputed from the base when it is needed

The record of a removal is written first, so that a run can distinguish a removed checkpoint from a lost one.
"""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore

_KEPT = "kept"
REGISTERED = "registered"
"""Owner of the checkpoints of registered versions."""


def run_owner(name: str) -> str:
    """Owner name of a run's checkpoints."""
    return f"run.{name}"


class Retention:
    """References to the checkpoints of one store."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._documents = store.documents

    def keep(self, artifact: Artifact, owner: str) -> None:
        """Add a reference of this owner."""
        name = self._name(artifact, owner)
        if self._documents.read(name) is None:
            self._documents.write(name, artifact.model_dump())

    def kept(self, owner: str) -> list[Artifact]:
        """Artifacts that this owner references."""
        documents = map(self._documents.read, self._documents.names(f"{_KEPT}/{owner}"))
        return [Artifact.model_validate(document) for document in documents if document is not None]

    def release(self, artifact: Artifact, owner: str) -> bool:
        """Remove this owner's reference, and the artifact with its last one; True if the artifact was removed."""
        self._documents.remove(self._name(artifact, owner))
        if any(name.endswith(f"/{artifact.sha256}") for name in self._documents.names(_KEPT)):
            return False
        return self._store.remove(artifact)

    def _name(self, artifact: Artifact, owner: str) -> str:
        return f"{_KEPT}/{owner}/{artifact.sha256}"
