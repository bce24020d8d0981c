"""Plan of a retraining: the triggers, as far as the curated conversations are in the cache."""

from __future__ import annotations

from grpo.config.retraining import RetrainConfig
from grpo.retraining.triggers import TriggerResult
from grpo.storage.home import home
from grpo_flows.plans.outline import Outline, follow
from grpo_flows.retrain import check, pending_path
from grpo_local.preflight import check_retraining
from grpo_tasks.registry import registry


def plan_retraining(config: RetrainConfig) -> tuple[Outline, tuple[TriggerResult, ...]]:
    """Check the triggers with cached stages only. Also returns their results, if they are known.

    The stages of the retraining itself are never in this plan, because its mixture is built when a trigger fires.
    """
    pipeline = check_retraining(config)
    followed = follow(lambda: check(config, pipeline))
    pending = pending_path(config)
    triggers = followed.result.triggers if followed.result is not None else None
    if pending.exists():
        outcome = f"an interrupted retraining goes on: {pending}"
    elif triggers is None:
        outcome = f"unknown until {followed.missing} has run: whether a trigger fires"
    elif triggers.fired:
        outcome = "a trigger fires: the champion is trained on the new conversations"
    else:
        outcome = f"nothing to do: {triggers.summary}"
    champion = registry().champion(pipeline.registry.model_name, follow_alias=pipeline.registry.follow_alias)
    outline = Outline(
        title=f"retraining {config.name}",
        facts={
            "outcome": outcome,
            "champion": f"none of {pipeline.registry.model_name}" if champion is None else champion.address,
            "configured triggers": ", ".join(trigger.kind for trigger in config.triggers),
            "stages of the check": followed.stages,
            "output": str(home() / config.name),
        },
    )
    return outline, triggers.results if triggers is not None else ()
