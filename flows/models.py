"""Models by address, for those who play or talk to one.

models:/support-desk@champion   a version in the registry, by alias or, as models:/support-desk/3, by number
runs/artifacts/checkpoint/77be  a checkpoint in the store
data/models/desk_clerk          a model folder
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.artifacts import MANIFEST, Artifact
from grpo.config.pipeline import PipelineConfig
from grpo.policy.catalog import model_folder

if TYPE_CHECKING:
    from flows.ledger import Ledger

REGISTERED = "models:/"


def checkpoint_at(model: str, config: PipelineConfig, ledger: Ledger) -> Artifact:
    """The checkpoint at an address; a model folder is taken into the store first.

    Raises `AddressError` and `PolicyError` where there is none, `ArtifactError` for one that lies outside of
    `config.store`.
    """
    from tasks.base import base  # not before it is needed: who talks to a folder needs no Prefect

    known = resolve_checkpoint(model)
    if known is not None:
        return known
    policy = config.policy.model_copy(update={"model": model})
    content = folder_digest(model_folder(model))
    return ledger.run(base, policy=policy, content=content, store=config.store).checkpoint


def resolve_checkpoint(model: str) -> Artifact | None:
    """The artifact at an address that is one of the registry, or the folder of a checkpoint in some store."""
    if model.startswith(REGISTERED):
        from tasks.registry import registry

        return registry().resolve(model).checkpoint
    manifest = Path(model) / MANIFEST
    if not manifest.is_file():
        return None
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    return Artifact(uri=str(manifest.parent.resolve()), sha256=digest, kind="checkpoint")


def store_of(checkpoint: Artifact) -> str:
    """The address of the store that an artifact lies in: two levels above it."""
    return checkpoint.uri.rsplit("/", 2)[0]


def folder_digest(folder: Path) -> str:
    """Digest of a model folder's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.is_file():
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
