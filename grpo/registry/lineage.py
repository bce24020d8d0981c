"""Lineage of a version: provenance, ancestors down to the base model, and promotions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo.errors import SignatureError
from grpo.policy.weights.promotion_records import ChampionChange
from grpo.policy.weights.registered import as_version
from grpo.registry.admission import admitted_by
from grpo.registry.provenance import Provenance
from grpo.storage.documents import Document

if TYPE_CHECKING:
    from grpo.policy.weights.registered import ModelVersion
    from grpo.registry.store import Registry

_POLICIES = ("policy", "merged")
"""Tags with a hash of a version's weights."""


class Ancestor(Document):
    """Policy that a training run started from."""

    policy: str
    """Hash of its weights."""
    version: int | None
    """Registered version with these weights. None for a base model."""
    model: str
    """Model folder in the run's config."""
    refusal: str | None = None
    """Reason why the version is not believed. What it was trained from is then unknown. None if it is believed."""


class Lineage(Document):
    """Provenance, ancestors and promotions of a version."""

    name: str
    version: int
    run_id: str
    aliases: list[str]
    tags: dict[str, str]
    provenance: Provenance
    parents: tuple[Ancestor, ...]
    """Starting policies, from the one of this version down to the base model."""
    evaluated_against: int | None
    """Version that was the champion in its evaluation. None if it was compared with a base model."""
    history: tuple[ChampionChange, ...]
    """Promotions and rollbacks of the model."""
    admitted: str | None = None
    """Time, author and reason of an admission. None if the version's own run has signed it."""
    moved: str | None = None
    """Sentence that is given if the alias `champion` names another version than was promoted. None if it does not."""
    unsigned: tuple[int, ...] = ()
    """Numbers of the promotion records that are not believed."""


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
        parents=_parents(registry, version.name, provenance, by_policy),
        evaluated_against=by_policy[provenance.champion].version if provenance.champion in by_policy else None,
        history=state.history,
        admitted=admitted_by(version),
        moved=state.moved,
        unsigned=state.unsigned,
    )


def _by_policy(versions: list[ModelVersion]) -> dict[str, ModelVersion]:
    """First version by hash of its weights: as trained, and with merged adapters, because the next run starts there."""
    by_policy: dict[str, ModelVersion] = {}
    for version in versions:
        for tag in _POLICIES:
            if (policy := version.tags.get(tag)) is not None:
                by_policy.setdefault(policy, version)
    return by_policy


def _parents(
    registry: Registry, name: str, provenance: Provenance, by_policy: dict[str, ModelVersion]
) -> tuple[Ancestor, ...]:
    parents: list[Ancestor] = []
    while True:
        base = provenance.policies[0]
        version = by_policy.get(base)
        policy = provenance.config.get("policy")
        folder = str(policy.get("model")) if isinstance(policy, dict) else "unknown"
        known = base in {parent.policy for parent in parents}
        number, refusal = (version.version, None) if version is not None else _refused(registry, name, base)
        parents.append(Ancestor(policy=base, version=number, model=folder, refusal=refusal))
        if version is None or known or version.is_model_alone:  # what an admitted model was trained from is unknown
            return tuple(parents)
        provenance = registry.provenance(version)


def _refused(registry: Registry, name: str, policy: str) -> tuple[int | None, str | None]:
    """Number of a version that claims these weights but is not believed, and the reason. None if there is none."""
    for version in registry.listed(name):
        if policy in (version.tags.get(tag) for tag in _POLICIES):
            try:
                as_version(version)
            except SignatureError as error:
                return int(version.version), str(error)
    return None, None
