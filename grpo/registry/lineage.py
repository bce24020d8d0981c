"""Where a version comes from, told from the version back to the base, and how it came to serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from grpo.registry.promotions import ChampionChange
from grpo.registry.provenance import Provenance

if TYPE_CHECKING:
    from grpo.registry.store import ModelVersion, Registry


class Ancestor(BaseModel):
    """A policy that training started from."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    policy: str
    """Hash of its weights."""
    version: int | None
    """The registered version with these weights; None for a base model that no run made."""
    model: str
    """Folder that the run named."""


class Lineage(BaseModel):
    """Everything that is known of a version."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    version: int
    run_id: str
    aliases: list[str]
    tags: dict[str, str]
    provenance: Provenance
    parents: tuple[Ancestor, ...]
    """What it was trained from, and so on down to the base model."""
    evaluated_against: int | None
    """The version that it was compared with; None for a base model."""
    history: tuple[ChampionChange, ...]
    """Promotions and rollbacks of the model."""
    pending: ChampionChange | None = None
    """A promotion or rollback that is under way or was cut off."""


def trace_lineage(registry: Registry, version: ModelVersion) -> Lineage:
    """Collect what the registry knows of a version and its ancestors."""
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
    """The first version with these weights: as they were trained, or with the adapters merged in, as a run starts."""
    found: dict[str, ModelVersion] = {}
    for version in versions:
        for tag in ("policy", "merged"):
            if (policy := version.tags.get(tag)) is not None:
                found.setdefault(policy, version)
    return found


def _parents(registry: Registry, provenance: Provenance, by_policy: dict[str, ModelVersion]) -> tuple[Ancestor, ...]:
    """From the base of this run to the base of the first one."""
    found: list[Ancestor] = []
    while True:
        base = provenance.policies[0]
        version = by_policy.get(base)
        policy = provenance.config.get("policy")
        folder = str(policy.get("model")) if isinstance(policy, dict) else "unknown"
        known = base in {one.policy for one in found}
        found.append(Ancestor(policy=base, version=version.version if version else None, model=folder))
        if version is None or known:
            return tuple(found)
        provenance = registry.provenance(version)
