"""The nightly job: train again where there is a reason to, from the champion on."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.retraining import Begun, Retraining
from grpo.config.retraining import RetrainConfig
from grpo.errors import GRPOError
from grpo.retraining.reports import PendingRetraining, RetrainingReport
from grpo.storage.home import home
from tasks.record import record


@flow(name="retrain", flow_run_name="{config.name}", task_runner=ThreadPoolTaskRunner(max_workers=1))
def retrain(config: RetrainConfig) -> State[RetrainingReport] | RetrainingReport:
    """Look for a reason; where one holds, train the champion on new conversations, and let the gates decide.

    Args:
        config: Which reasons count, which conversations are taken, and which run is repeated.

    """
    work = Retraining(config)
    begun = Begun(config, work.pipeline)
    plan = begun.read()
    if plan is None:
        found = work.look()
        if not found.fired:
            ended = RetrainingReport(name=config.name, verdict="nothing to do", reason=found.summary, triggers=found)
            record(ended, None, home() / config.name)
            return Completed(name="Nothing to do", message=found.summary, data=ended)
        plan = work.plan(found)
        begun.keep(plan)
    ended = _train(plan, begun)
    begun.end()
    return ended


def _train(plan: PendingRetraining, begun: Begun) -> RetrainingReport:
    """Run the pipeline on the plan; one that cannot be carried out is not tried again the next night."""
    from flows.train import train  # loads torch, which a night without a reason can do without

    folder, common = (
        home() / plan.config.name,
        {"name": plan.config.name, "triggers": plan.triggers, "mixture": plan.mixture},
    )
    try:
        promotion = train(plan.run)
    except GRPOError as error:
        record(RetrainingReport(**common, verdict="failed", reason=str(error)), None, folder)
        begun.end()
        raise
    version, decision = promotion.version, promotion.decision
    ended = RetrainingReport(
        **common,
        verdict=decision.verdict,
        reason=decision.reason,
        version=f"{version.name}/{version.version}" if version is not None else None,
    )
    record(ended, version, folder)
    return ended
