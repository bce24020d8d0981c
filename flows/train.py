"""The main job: scenarios in, a judged and registered policy out."""

from __future__ import annotations

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dispatch import Dispatch
from flows.ledger import Ledger
from flows.local import settings
from flows.run import Promotion, Run
from flows.runner import shard_runner
from grpo.config.loading import apply_overrides
from grpo.config.pipeline import PipelineConfig
from grpo.errors import NoEffect, NoLearningSignal
from grpo.evaluation.schema import Decision


@flow(name="train", flow_run_name="{config.name}", task_runner=ThreadPoolTaskRunner(max_workers=1))
def train(config: PipelineConfig, overrides: tuple[str, ...] = ()) -> Promotion:
    """Prepare scenarios, train the policy, and promote it if it beats the one in service.

    Args:
        config: Everything that decides the result of the run.
        overrides: `section.key=value`, laid over the config as `--set` does.

    """
    config = apply_overrides(config, overrides)
    with shard_runner(config.rollout) as runner, Dispatch(config.compute) as elsewhere:
        run = Run(config, Ledger(runner, elsewhere), started_at=settings.started_at())
        run.prepare()
        try:
            run.improve()
            decision = run.publish(run.judge())
        except (NoLearningSignal, NoEffect) as error:
            run.report(Decision(verdict="failed", reason=str(error)))
            raise
        return run.report(decision)
