"""Copies of artifacts from one store into another, e.g. if a pipeline has another store than the run before it."""

from __future__ import annotations

import shutil

from grpo.artifacts import Artifact, ArtifactStore, store_of
from grpo.storage.digests import MANIFEST


def adopt(artifacts: ArtifactStore, folder: Artifact) -> Artifact:
    """Own a folder in this store. If another store holds it, it is copied.

    Raises `ArtifactError` if it is missing or damaged there.
    """
    if not artifacts.has(folder):
        source = store_of(folder).path(folder)
        with artifacts.new_folder(folder.kind) as new:
            shutil.copytree(source, new.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
    return artifacts.own(folder)
