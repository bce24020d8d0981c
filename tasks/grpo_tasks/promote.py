"""Promotion and rollback of a registered version. Not cached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists
from prefect.runtime import flow_run

from grpo.policy.weights.promotion_records import Actor
from grpo.registry import ChampionChange
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import uncached_stage
from grpo_tasks.registry import registry

_LEASE_S, _PATIENCE_S = 60.0, 180.0


class PromoteResult(StageResult):
    """The promotion. None if the version was champion already."""

    change: ChampionChange | None


@uncached_stage
def promote(
    model_name: str, version: int, reason: str, force: bool = False, follow_alias: bool = False
) -> PromoteResult:
    """Make a version champion. Raises like `Registry.promote`."""
    with one_at_a_time(model_name):
        change = registry().promote(
            model_name, version, reason=reason, by=_flow_run(), force=force, follow_alias=follow_alias
        )
        return PromoteResult(change=change)


@uncached_stage
def rollback(model_name: str, reason: str, follow_alias: bool = False) -> PromoteResult:
    """Restore the previous champion."""
    with one_at_a_time(model_name):
        change = registry().rollback(model_name, reason=reason, by=_flow_run(), follow_alias=follow_alias)
        return PromoteResult(change=change)


def _flow_run() -> Actor:
    """The user of this process, and its flow run."""
    return Actor.here(run=flow_run.get_id())


@contextmanager
def one_at_a_time(model_name: str) -> Iterator[None]:
    """Lock a model's promotions on all machines of this Prefect server. If the holder dies, its lease expires."""
    name = f"promote-{model_name}"
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.upsert_global_concurrency_limit_by_name(name, 1)
    with concurrency(name, occupy=1, lease_duration=_LEASE_S, timeout_seconds=_PATIENCE_S, strict=True):
        yield
