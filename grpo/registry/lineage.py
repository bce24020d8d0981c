"""Lineage of a version: provenance, ancestors down to the base model, and promotions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo.registry.promotions import ChampionChange
from grpo.registry.provenance import Provenance
from grpo.storage.documents import Document

if TYPE_CHECKING:
    from grpo.policy.weights.registered import ModelVersion
    from grpo.registry.store import Registry


class Ancestor(Document):
    """Policy that a training run started from."""

    policy: str
    """Hash of its weights."""
    version: int | None
    """Registered version with these weights; None for a base model."""
    model: str
    """Model folder in the run's config."""


class Lineage(Document):
    """Provenance, ancestors and promotions of a version."""

    name: str
    version: int
    run_id: str
    aliases: list[str]
    tags: dict[str, str]
    provenance: Provenance
    parents: tuple[Ancestor, ...]
    """Starting policies, from this version's down to the base model."""
    evaluated_against: int | None
    """Version that was the champion in its evaluation; None for a base model."""
    history: tuple[ChampionChange, ...]
    """Promotions and rollbacks of the model."""
    pending: ChampionChange | None = None
    """Promotion or rollback in progress, or interrupted."""


def trace_lineage(registry: Registry, version: ModelVersion) -> Lineage:
    """Collect the lineage of a version from the registry."""
    by_policy = _by_policy(registry.versions(version.name))
    provenance = registry.provenance(version)
    state = registry.promotions(version.name).state()
    return Lineage(
        name=version.name,
        version=version.version,
        run_id=version.run_id,
        aliases=registry.aliases(version),
        tags=version.tags,
        provenance=provenance,
        parents=_parents(registry, provenance, by_policy),
        evaluated_against=by_policy[provenance.champion].version if provenance.champion in by_policy else None,
        history=state.history,
        pending=state.pending,
    )


def _by_policy(versions: list[ModelVersion]) -> dict[str, ModelVersion]:
    """First version by hash of its weights, as trained or with merged adapters, from which the next run starts."""
    by_policy: dict[str, ModelVersion] = {}
    for version in versions:
        for tag in ("policy", "merged"):
            if (policy := version.tags.get(tag)) is not None:
                by_policy.setdefault(policy, version)
    return by_policy


def _parents(registry: Registry, provenance: Provenance, by_policy: dict[str, ModelVersion]) -> tuple[Ancestor, ...]:
    parents: list[Ancestor] = []
    while True:
        base = provenance.policies[0]
        version = by_policy.get(base)
        policy = provenance.config.get("policy")
        folder = str(policy.get("model")) if isinstance(policy, dict) else "unknown"
        known = base in {parent.policy for parent in parents}
        parents.append(Ancestor(policy=base, version=version.version if version else None, model=folder))
        if version is None or known:
            return tuple(parents)
        provenance = registry.provenance(version)
