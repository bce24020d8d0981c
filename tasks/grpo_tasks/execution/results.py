"""Results of stages in the store: looked up by cache identity, checked, and written once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import ArtifactError
from grpo.reads.recorder import changed
from grpo.storage.home import home

_FOLDER = "results"


class StageResult(BaseModel):
    """Output of a stage: artifacts and numbers, never tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compute_s: float = 0.0
    """Seconds that the work itself took when it was last done."""
    reads: dict[str, str | None] = {}
    """Digests of what a user's code read during the work, by name (`grpo.reads.names`). None if it was missing."""

    def numbers(self) -> dict[str, float]:
        """Numbers that the progress shows when the stage has ended."""
        return {}

    def artifacts(self) -> list[Artifact]:
        """Every artifact of this result."""
        return [value for _, value in self if isinstance(value, Artifact)]

    def verify(self, store: ArtifactStore) -> None:
        """Raise `ArtifactError` if something that this result names is missing, damaged or changed."""
        for artifact in self.artifacts():
            store.verify(artifact)
        if differing := changed(self.reads):
            raise ArtifactError(f"what it was computed from has changed: {', '.join(differing)}")


R = TypeVar("R", bound=StageResult)


def read_result(store: ArtifactStore, key: str, kind: type[R]) -> R | None:
    """Read the result with this cache identity. None if there is none.

    Raises `ArtifactError` if it, an artifact or a file that it was computed from is missing, damaged or changed.
    """
    name = f"{_FOLDER}/{key}"
    document = store.documents.read(name)
    if document is None:
        return None
    try:
        result = kind.model_validate(_with_own_addresses(store, document))
    except ValidationError as error:
        first = error.errors()[0]
        fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ArtifactError(
            f"the stored result {store.documents.address(name)} cannot be read as {kind.__name__}, {fault}"
        ) from error
    result.verify(store)
    return result


def write_result(store: ArtifactStore, key: str, result: StageResult) -> None:
    """Keep the result under this cache identity."""
    store.documents.write(f"{_FOLDER}/{key}", result.model_dump(mode="json"))


def lock_path(key: str) -> Path:
    """File of the lock of a cache identity."""
    return home() / "locks" / hashlib.sha256(key.encode()).hexdigest()[:32]


def stages_with_results(store: ArtifactStore) -> set[str]:
    """Names of the stages that have a result in the store, from any run."""
    return {name.rpartition("/")[2].rpartition("-")[0] for name in store.documents.names(_FOLDER)}


def _with_own_addresses(store: ArtifactStore, value: Any) -> Any:
    """The document with the present addresses of its artifacts, because the store may have been moved since."""
    if isinstance(value, list):
        return [_with_own_addresses(store, item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == Artifact.model_fields.keys():
        return store.own(Artifact.model_validate(value)).model_dump()
    return {name: _with_own_addresses(store, item) for name, item in value.items()}
