"""Check the triggers of a retraining and emit an event, on which an automation may start the retraining."""

from __future__ import annotations

from prefect import flow
from prefect.events import emit_event

from grpo.config.retraining import RetrainConfig
from grpo.retraining.reports import TriggerReport
from grpo_flows.retrain import check
from grpo_local.preflight import check_retraining
from grpo_tasks.execution.executor import stage_executor
from grpo_tasks.execution.task_runners import one_thread

EVENT = "grpo.drift-detected"


@flow(name="watch", flow_run_name="{config.name}", task_runner=one_thread())
def watch(config: RetrainConfig) -> TriggerReport:
    """Check every trigger, and emit `grpo.drift-detected` if one fires against a champion. Trains nothing.

    Args:
        config: The triggers, and the model that they are checked for.

    """
    pipeline = check_retraining(config, depth="files")
    with stage_executor():
        report = check(config, pipeline).triggers
    if report.drifted:
        emit_event(
            EVENT,
            resource={"prefect.resource.id": f"grpo.model.{report.model}", "prefect.resource.name": report.model},
            payload={"champion": report.champion, "triggers": [result.model_dump() for result in report.fired]},
        )
    return report
