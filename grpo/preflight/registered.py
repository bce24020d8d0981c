"""Checks of the registry before a run starts.

A run uses the registry only at its end: it compares the candidate with the champion, and registers the result. If the
experiment cannot be made, or the champion's checkpoint is missing or in a dtype that the rollout servers do not have,
all training would be in vain. `grpo.preflight.check` calls these checks with the facts of the config.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpo.artifacts import ArtifactStore, store_of
from grpo.config.rollout import RolloutSettings
from grpo.errors import GRPOError, PolicyError, RegistryError
from grpo.policy.weights.registered import REGISTERED
from grpo.preflight.facts import Facts
from grpo.registry import ModelVersion, Registry


def registry(facts: Facts) -> Iterator[Exception]:
    """Look for the experiment and for the champion's checkpoint."""
    models = facts.registry()
    if models is None:
        return
    try:
        models.known_experiment(facts.given.registry.experiment)
    except GRPOError as error:
        yield error
    _champion(facts, models)


def _champion(facts: Facts, models: Registry) -> None:
    """Refuse to start if the champion was deleted or cannot be rolled out, because no candidate could be compared.

    Its checkpoint may be in the store of the config or in its own store.
    """
    settings = facts.given.registry
    champion = models.champion(settings.model_name, follow_alias=settings.follow_alias)
    if champion is None:
        return
    checkpoint = champion.checkpoint
    if not any(store.has(checkpoint) for store in (ArtifactStore(facts.given.store), store_of(checkpoint))):
        raise RegistryError(
            f"the checkpoint {checkpoint.uri} of the champion {champion.address} is missing, so that no candidate "
            "could be compared with it. Restore it from a backup, or promote another version"
        )
    check_dtype(facts.given.rollout, models, champion)


def evaluated(facts: Facts) -> Iterator[Exception]:
    """Refuse rollout servers for a model of the registry with another dtype than theirs."""
    address, models = facts.given.policy.model, facts.registry()
    if models is not None and address.startswith(REGISTERED):
        check_dtype(facts.given.rollout, models, models.resolve(address))
    yield from ()


def check_dtype(rollout: RolloutSettings, models: Registry, version: ModelVersion) -> None:
    """Refuse rollout servers for a version whose run has another dtype than float32. Admitted models have float32."""
    if rollout.backend != "servers" or version.is_model_alone:
        return
    policy = models.provenance(version).config.get("policy")
    dtype = policy.get("dtype", "float32") if isinstance(policy, dict) else "float32"
    if dtype != "float32":
        raise PolicyError(
            f"rollout.backend servers computes in float32, and {version.address} is rolled out in {dtype}, the "
            "policy.dtype of its run. Set rollout.backend to transformers"
        )
