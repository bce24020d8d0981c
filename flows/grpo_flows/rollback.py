"""Roll back to the version before the champion."""

from __future__ import annotations

from prefect import flow

from grpo.registry import ChampionChange
from grpo.registry.promotions import Reason
from grpo_tasks.promote import rollback as rollback_version


@flow(name="rollback", flow_run_name="{model_name}")
def rollback(model_name: str, reason: Reason) -> ChampionChange:
    """Restore the previous champion. Raises `NothingToRollBack` without one.

    Args:
        model_name: The registered model.
        reason: Reason, kept in the promotion history.

    """
    change = rollback_version(model_name, reason).change
    assert change is not None
    return change
