"""Take the champion out of service."""

from __future__ import annotations

from prefect import flow

from grpo.registry import ChampionChange
from grpo.registry.promotions import Reason
from tasks.promote import rollback as rollback_version


@flow(name="rollback", flow_run_name="{model_name}")
def rollback(model_name: str, reason: Reason) -> ChampionChange:
    """Make the version before the champion champion again. Raises `NothingToRollBack` without one.

    Args:
        model_name: The registered model.
        reason: Why, for the record.

    """
    change = rollback_version(model_name, reason).change
    assert change is not None
    return change
