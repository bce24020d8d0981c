"""Reads of a user's code that are not inputs of a stage, and reads that a stage cannot see."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from grpo.artifacts import ArtifactStore
from grpo.identity.code import UserCode
from grpo.storage.home import home

logger = logging.getLogger(__name__)

_warned: set[tuple[str, str]] = set()


def own_folders(store: ArtifactStore) -> tuple[Path, ...]:
    """Folders in which files are not inputs of a stage: the home, and the store if it is local."""
    return (home(), Path(store.root)) if store.is_local else (home(),)


def warn_of_unseen(stage: str, code: UserCode, unseen: Sequence[str]) -> None:
    """Warn once per process and way that something is read that cannot be seen, unless reads are declared."""
    for way in unseen:
        if not code.declares and (stage, way) not in _warned:
            _warned.add((stage, way))
            logger.warning(
                "stage %s: %s reads through %s, and not all of these reads can be seen (docs/internals/identity.md). "
                "If the data changes, the stage is not computed again, unless you declare what is read: reads: [FILE, "
                "$VARIABLE]",
                *(stage, " and ".join(code.references), way),
            )
