"""Checks of the registry: the experiment exists or can be made, and the champion can be compared with."""

from __future__ import annotations

from collections.abc import Iterator

from grpo.artifacts import ArtifactStore, store_of
from grpo.errors import GRPOError, RegistryError
from grpo.preflight.facts import Facts
from grpo.registry import Registry


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
    """Refuse to start if the champion was deleted or its checkpoint is missing, because no candidate could be compared.

    The checkpoint may be in the store of the config or in its own store.
    """
    name = facts.given.registry.model_name
    champion = models.champion(name)
    if champion is None:
        return
    checkpoint = champion.checkpoint
    if not any(store.has(checkpoint) for store in (ArtifactStore(facts.given.store), store_of(checkpoint))):
        raise RegistryError(
            f"the checkpoint {checkpoint.uri} of the champion {champion.address} is missing, so that no candidate "
            "could be compared with it. Restore it from a backup, or promote another version"
        )
