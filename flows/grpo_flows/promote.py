"""Promote a version manually."""

from __future__ import annotations

from prefect import flow

from grpo.policy.weights.promotion_records import CANDIDATE, Reason
from grpo.registry import ChampionChange
from grpo_tasks.promote import promote as promote_version
from grpo_tasks.registry import registry


@flow(name="promote", flow_run_name="{model_name}")
def promote(
    model_name: str, version: int | None = None, reason: Reason = "promoted by hand", force: bool = False
) -> ChampionChange | None:
    """Make a version of a model champion, by default the candidate. Returns None if it is champion already.

    Raises `PromotionRefused` if it did not pass its gates, was evaluated against another champion or has been champion
    before. `force` overrides this, and the history records it.

    Args:
        model_name: The registered model.
        version: Its version, or the candidate if none is named.
        reason: Reason, kept in the promotion history.
        force: Promote it against its verdict.

    """
    if version is None:
        version = registry().resolve(f"models:/{model_name}@{CANDIDATE}").version
    return promote_version(model_name, version, reason, force).change
