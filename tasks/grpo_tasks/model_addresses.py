"""Model addresses: versions of the registry, checkpoints of a store and model folders.

models:/support-desk@champion   a version in the registry, by alias or, as models:/support-desk/3, by number
runs/artifacts/checkpoint/77be  a checkpoint in the store
data/models/desk_clerk          a model folder
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from grpo.artifacts import Artifact
from grpo.storage.digests import MANIFEST

REGISTERED = "models:/"


def stored_checkpoint(model: str) -> Artifact | None:
    """The checkpoint at an address of the registry or of a store. None for a model folder.

    Raises like `Registry.resolve`.
    """
    if model.startswith(REGISTERED):
        from grpo_tasks.registry import registry

        return registry().resolve(model).checkpoint
    manifest = Path(model) / MANIFEST
    if not manifest.is_file():
        return None
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    return Artifact(uri=str(manifest.parent.resolve()), sha256=digest, kind="checkpoint")
