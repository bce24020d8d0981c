"""Promotion and rollback of a registered version. Not cached."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists
from prefect.runtime import flow_run

from grpo.registry import ChampionChange, Registry
from grpo.registry.promotions import Actor
from tasks.registry import registry
from tasks.results import StageResult
from tasks.stage import uncached_stage

_LEASE_S, _PATIENCE_S = 60.0, 180.0


class PromoteResult(StageResult):
    """The promotion; None where the version was champion before."""

    change: ChampionChange | None


@uncached_stage
def promote(model_name: str, version: int, reason: str, force: bool = False) -> PromoteResult:
    """Make a version champion. Raises `PromotionRefused`, and `ArtifactError` for a damaged version."""
    models = registry()
    checks = models.provenance(models.resolve(f"models:/{model_name}/{version}")).checks
    with one_at_a_time(model_name):
        change = models.promotions(model_name).promote(
            version, reason=reason, by=actor(), force=force, checks=checks, verify=_verifier(models, model_name)
        )
    return PromoteResult(change=change)


@uncached_stage
def rollback(model_name: str, reason: str) -> PromoteResult:
    """Make the version before the champion champion again."""
    models = registry()
    with one_at_a_time(model_name):
        change = models.promotions(model_name).rollback(reason=reason, by=actor(), verify=_verifier(models, model_name))
    return PromoteResult(change=change)


def _verifier(models: Registry, model_name: str) -> Callable[[int], None]:
    """A check of the files of a version, before it serves."""
    return lambda version: models.verify(models.resolve(f"models:/{model_name}/{version}"))


def actor() -> Actor:
    """Who asks for a change in this process."""
    return Actor(user=getpass.getuser(), host=socket.gethostname(), run=flow_run.get_id())


@contextmanager
def one_at_a_time(model_name: str) -> Iterator[None]:
    """Hold a model's promotions on every machine of this Prefect server; a dead holder's turn ends after a minute."""
    name = f"promote-{model_name}"
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.upsert_global_concurrency_limit_by_name(name, 1)
    with concurrency(name, occupy=1, lease_duration=_LEASE_S, timeout_seconds=_PATIENCE_S, strict=True):
        yield
