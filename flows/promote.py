"""Let a version serve by hand, as a run does it by itself."""

from __future__ import annotations

from prefect import flow

from grpo.registry import ChampionChange
from grpo.registry.promotions import CANDIDATE, Reason
from tasks.promote import promote as promote_version
from tasks.registry import registry


@flow(name="promote", flow_run_name="{model_name}")
def promote(
    model_name: str, version: int | None = None, reason: Reason = "promoted by hand", force: bool = False
) -> ChampionChange | None:
    """Let a version of a model serve, the candidate where none is named; None where it serves already.

    Raises `PromotionRefused` for a version that did not pass its gates, was judged against another champion or has
    served before, unless `force` is given; the record says so.

    Args:
        model_name: The registered model.
        version: Its version; the candidate if none is named.
        reason: Why, for the record.
        force: Promote it in spite of its verdict.

    """
    if version is None:
        version = registry().resolve(f"models:/{model_name}@{CANDIDATE}").version
    return promote_version(model_name, version, reason, force).change
