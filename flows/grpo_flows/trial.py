"""One trial of a tuning study: a training run that is evaluated while it trains, and registers nothing."""

from __future__ import annotations

import math
from collections.abc import Generator

from prefect import flow

from grpo.config.search_space import Value
from grpo.config.tuning import TuneConfig
from grpo.errors import PolicyError
from grpo.tuning.study import IntermediateEvaluation, evaluation_iterations
from grpo_flows.pipeline import base_policy, prepare_scenarios, starting_policies, training_steps
from grpo_flows.steps.rollouts import collect_heldout
from grpo_local import preflight
from grpo_local.rollout_servers import run_executor
from grpo_tasks.execution.task_runners import one_thread
from grpo_tasks.validation_split import validation_split
from grpo_tasks.write_served import with_written_data


@flow(name="trial", flow_run_name="{plan.name}-{number}", task_runner=one_thread())
def trial(
    plan: TuneConfig, number: int, values: dict[str, Value], start: str
) -> Generator[IntermediateEvaluation, None, None]:
    """Train with these values, and evaluate on the validation split after each share of the training.

    It uses the stages of a run, so that results of an interrupted trial are in the cache when it is tried again. The
    evaluation has the settings of the base config, whatever the trial trains with.

    Args:
        plan: The study.
        number: Number of the trial in the study.
        values: The values that are tried, by path into the base config.
        start: Hash of the policy that every trial starts from.

    """
    config = preflight.check(plan.trial(values), purpose="trial")
    with run_executor(config.rollout) as executor:
        config = with_written_data(config)
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        base = starting_policies(config, base_policy(config.policy, config.store))[-1]
        if base.policy != start:
            raise PolicyError(f"trial {number} would start from policy {base.policy}, the study is of {start}")
        split = validation_split(
            scenarios=data.artifact, split=data.split.split, share=plan.validation_fraction, store=config.store
        )
        due = evaluation_iterations(config.training.iterations, plan.intermediate_evals)
        for index, step in enumerate(training_steps(config, split, base), start=1):
            if index not in due:
                continue
            summary = collect_heldout(plan.base, step.policy.checkpoint, split).summary
            metrics = {"reward": summary.reward, "success": summary.success}
            value = metrics[plan.metric]
            stages = executor.timings()
            numbers = {
                **{name: float(mean) for name, mean in metrics.items() if mean is not None},
                "kl_to_base": step.iteration.kl_to_base,
                "stages": float(sum(stage.runs for stage in stages)),
                "cached": float(sum(stage.cached for stage in stages)),
            }
            for _ in range(due.count(index)):
                yield IntermediateEvaluation(reward=math.nan if value is None else value, numbers=numbers)
