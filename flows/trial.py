"""One trial of a study: a run of the pipeline that is looked at while it trains, and registers nothing."""

from __future__ import annotations

import math
from collections.abc import Generator

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.ledger import Ledger
from flows.local import settings
from flows.rollouts import Rollouts
from flows.run import Run
from flows.runner import shard_runner
from grpo.config.search_space import Value
from grpo.config.tuning import TuneConfig
from grpo.errors import PolicyError
from grpo.tuning.study import IntermediateEvaluation, evaluation_iterations
from tasks.hold_back import validation_split


@flow(name="trial", flow_run_name="{plan.name}-{number}", task_runner=ThreadPoolTaskRunner(max_workers=1))
def trial(
    plan: TuneConfig, number: int, values: dict[str, Value], start: str
) -> Generator[IntermediateEvaluation, None, None]:
    """Train with these values, and play the validation scenarios after each share of the training.

    Every stage is that of a run, so what an interrupted trial has computed is in the cache when it is tried again.
    Validation is played as the base config plays, whatever the trial trains with.

    Args:
        plan: The study.
        number: Of the trial in the study.
        values: What is tried, by path into the base config.
        start: Hash of the policy that every trial starts from.

    """
    config = plan.trial(values)
    with shard_runner(config.rollout) as runner:
        run = Run(config, Ledger(runner), started_at=settings.started_at())
        run.gather()
        if run.base.policy != start:
            raise PolicyError(f"trial {number} would start from policy {run.base.policy}, the study is of {start}")
        sides = run.ledger.run(
            validation_split,
            scenarios=run.data.scenarios,
            split=run.sides.split,
            share=plan.validation_fraction,
            store=config.store,
        )
        run.rollouts = Rollouts(config, run.ledger, run.data, sides)
        judged = Rollouts(plan.base, run.ledger, run.data, sides)
        due = evaluation_iterations(config.training.iterations, plan.intermediate_evals)
        for index, iteration in enumerate(run.steps(), start=1):
            if index not in due:
                continue
            summary = judged.heldout(run.candidate.checkpoint).summary
            shown = {"reward": summary.reward, "success": summary.success}
            value = shown[plan.metric]
            stages = run.ledger.timings()
            numbers = {
                **{name: float(found) for name, found in shown.items() if found is not None},
                "kl_to_base": iteration.kl_to_base,
                "stages": float(sum(stage.runs for stage in stages)),
                "cached": float(sum(stage.cached for stage in stages)),
            }
            for _ in range(due.count(index)):
                yield IntermediateEvaluation(reward=math.nan if value is None else value, numbers=numbers)
