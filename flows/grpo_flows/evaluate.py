"""Evaluate a model on the held-out scenarios of a config, without training."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import yaml
from prefect import flow

from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.schema import EvaluationDocument, Interval
from grpo.identity.code import code_digest
from grpo.policy.catalog import pinned
from grpo.scenarios.subset import select_scenarios
from grpo.storage.files import write_atomically
from grpo.storage.home import home
from grpo_flows.pipeline import Scenarios, base_policy, in_store, prepare_scenarios
from grpo_flows.steps.rollouts import collect_heldout
from grpo_local import preflight
from grpo_local.rollout_servers import run_executor
from grpo_tasks.evaluate_policy import EvaluatePolicyResult, evaluate_policy
from grpo_tasks.execution.task_runners import one_thread
from grpo_tasks.model_addresses import REGISTERED, stored_checkpoint
from grpo_tasks.page_artifacts import show_table, show_text
from grpo_tasks.registry import registry


@flow(name="evaluate", flow_run_name="{config.name}", task_runner=one_thread())
def evaluate(
    config: PipelineConfig,
    model: str | None = None,
    scenarios_file: str | None = None,
    num_episodes: int | None = None,
    output_file: str | None = None,
) -> EvaluationDocument:
    """Roll a model out on the held-out scenarios, and record success and reward with confidence intervals.

    Args:
        config: Environment, rewards and held-out scenarios of the evaluation.
        model: Address of the model, by default the champion of `registry.model_name`.
        scenarios_file: Scenarios that replace the config's held-out ones.
        num_episodes: Upper bound on the episodes, by default all.
        output_file: Path of the result, by default evaluation.json in the folder of the report.

    """
    config = select_scenarios(config, scenarios_file, num_episodes)
    model = evaluated_model(config, model)
    preflight.check_evaluation(config, model, whole=scenarios_file is not None)
    with run_executor(config.rollout):
        model, data, evaluated = measure(config, model, whole=scenarios_file is not None)
    document = EvaluationDocument(
        name=config.name,
        model=model,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        scenarios=data.split.heldout,
        scenarios_digest=data.artifact.sha256[:16],
        code_digest=code_digest(),
        measurement=evaluated.measurement,
        config=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
    )
    path = Path(output_file) if output_file else home() / config.name / "evaluation.json"
    write_atomically(path, document.model_dump_json(indent=1))
    _attach(document, path)
    return document


def evaluated_model(config: PipelineConfig, model: str | None) -> str:
    """Address of the model that is checked and measured. None is the champion of the config's model.

    An alias of the registry is replaced by the number of its version, so that nothing changes if the alias moves during
    the evaluation.
    """
    address = model or f"{REGISTERED}{config.registry.model_name}@champion"
    if not address.startswith(REGISTERED):
        return address
    return registry().resolve(address, follow_alias=config.registry.follow_alias).address


def measure(config: PipelineConfig, model: str, *, whole: bool) -> tuple[str, Scenarios, EvaluatePolicyResult]:
    """Evaluate a model with the stages of a training. `whole` holds out every scenario.

    Returns the model's address, pinned if it is on a hub, with the scenarios and the measurement.
    """
    checkpoint = stored_checkpoint(model)
    if checkpoint is None:
        model = pinned(model)
    data = prepare_scenarios(
        config.scenarios,
        store=config.store,
        validation_fraction=1.0 if whole else None,
        environment=config.environment,
    )
    if checkpoint is None:
        checkpoint = base_policy(config.policy.model_copy(update={"model": model}), config.store).checkpoint
    else:
        checkpoint = in_store(config.store, checkpoint)
    heldout = collect_heldout(config, checkpoint, data.split)
    evaluated = evaluate_policy(scored=heldout.scored, settings=config.evaluation, seed=config.seed, store=config.store)
    return model, data, evaluated


def _attach(document: EvaluationDocument, path: Path) -> None:
    """Show the numbers in Prefect's page."""
    evaluation = document.measurement
    show_text(
        f"{document.model} on the scenarios of {document.name}",
        f"policy {evaluation.policy}, {evaluation.episodes} episodes; {path}",
        key="evaluation",
    )
    show_table(
        [_row(name=part.name, success=part.success, reward=part.reward) for part in evaluation.slices], key="slices"
    )
    tries = enumerate(zip(evaluation.pass_at_k, evaluation.pass_hat_k, strict=True), start=1)
    show_table(
        [_row(name=f"{k} tries", **{"pass@k": once, "pass^k": each}) for k, (once, each) in tries], key="pass-rates"
    )


def _row(*, name: str, **intervals: Interval | None) -> dict[str, str | float | None]:
    row: dict[str, str | float | None] = {"name": name}
    for metric, interval in intervals.items():
        if interval is not None:
            row |= {
                metric: round(interval.mean, 4),
                f"{metric} low": round(interval.low, 4),
                f"{metric} high": round(interval.high, 4),
            }
        else:
            row |= dict.fromkeys((metric, f"{metric} low", f"{metric} high"))
    return row
