"""Look for triggers to train again, and tell: an automation may start the retraining."""

from __future__ import annotations

from prefect import flow
from prefect.events import emit_event
from prefect.task_runners import ThreadPoolTaskRunner

from flows.retraining import Retraining
from grpo.config.retraining import RetrainConfig
from grpo.retraining.reports import TriggerReport

EVENT = "grpo.drift-detected"


@flow(name="watch", flow_run_name="{config.name}", task_runner=ThreadPoolTaskRunner(max_workers=1))
def watch(config: RetrainConfig) -> TriggerReport:
    """Check every reason; where one holds against a champion, emit `grpo.drift-detected`. Trains nothing.

    Args:
        config: Which triggers are checked, of which model.

    """
    found = Retraining(config).look()
    if found.drifted:
        emit_event(
            EVENT,
            resource={"prefect.resource.id": f"grpo.model.{found.model}", "prefect.resource.name": found.model},
            payload={"champion": found.champion, "triggers": [one.model_dump() for one in found.fired]},
        )
    return found
