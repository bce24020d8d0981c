"""Parts of a stage that are kept in the store under identities of their own, e.g. the days of a log.

A part is looked up, computed by one process at a time, and verified like the result of a stage. It has no task run,
because a check of the triggers has a thousand parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import ArtifactError
from grpo.identity.cache_identity import stage_key
from grpo.registry.retention import Retention
from grpo.storage.locks import file_lock
from grpo_tasks.execution.results import StageResult, lock_path, read_result, write_result

logger = logging.getLogger(__name__)


class PartResult(StageResult):
    """A file."""

    part: Artifact


class StoredParts:
    """Parts in a store, by the identity of each. `used` has the results that were looked up, by their key."""

    def __init__(self, store: str, kind: str) -> None:
        self._store, self._kind = ArtifactStore(store), kind
        self.used: dict[str, Artifact] = {}

    def find(self, stage: str, identity: Mapping[str, Any]) -> Path | None:
        """The file with this identity, if there is one."""
        return self._find(stage_key(stage, identity))

    def make(self, stage: str, identity: Mapping[str, Any], write: Callable[[Path], None]) -> Path:
        """The file with this identity. If it is missing, `write` writes it."""
        key = stage_key(stage, identity)
        if (path := self._find(key)) is not None:
            return path
        with file_lock(lock_path(key)):
            if (path := self._find(key)) is not None:
                return path
            with self._store.new_file(self._kind, ".parquet") as new:
                write(new.path)
            write_result(self._store, key, PartResult(part=new.artifact))
        self.used[key] = new.artifact
        return self._store.path(new.artifact)

    def renew(self) -> None:
        """Keep the parts that were used for today and tomorrow, and remove parts that were last used earlier."""
        Retention(self._store).renew(self._kind, self.used, today=datetime.now(UTC).date())

    def _find(self, key: str) -> Path | None:
        try:
            result = read_result(self._store, key, PartResult)
            if result is None:
                return None
            path = self._store.path(result.part)
        except ArtifactError as error:
            logger.warning("a part of the conversations is computed again: %s", error)
            return None
        self.used[key] = result.part
        return path
