"""Roll back to the version before the champion."""

from __future__ import annotations

from prefect import flow

from grpo.policy.weights.promotion_records import Reason
from grpo.registry import ChampionChange
from grpo_tasks.promote import rollback as rollback_version


@flow(name="rollback", flow_run_name="{model_name}")
def rollback(model_name: str, reason: Reason, follow_alias: bool = False) -> ChampionChange:
    """Restore the previous champion. Raises `NothingToRollBack` if there is none.

    Args:
        model_name: The registered model.
        reason: Reason, kept in the promotion history.
        follow_alias: Go back from the version that the alias champion names, even if it was moved by hand.

    """
    change = rollback_version(model_name, reason, follow_alias).change
    assert change is not None
    return change
