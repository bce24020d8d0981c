"""How good a model is: it plays the held-out scenarios of a config, and nothing is trained."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import yaml
from prefect import flow
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.task_runners import ThreadPoolTaskRunner

from flows.ledger import Ledger
from flows.models import checkpoint_at
from flows.rollouts import Rollouts
from flows.runner import shard_runner
from flows.scenarios import prepare_scenarios
from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.schema import EvaluationDocument, Interval
from grpo.identity.code import code_digest
from grpo.scenarios.subset import select_scenarios
from grpo.storage.files import write_atomically
from grpo.storage.home import home
from tasks.measure import measure


@flow(name="evaluate", flow_run_name="{config.name}", task_runner=ThreadPoolTaskRunner(max_workers=1))
def evaluate(
    config: PipelineConfig,
    model: str | None = None,
    scenarios_file: str | None = None,
    num_episodes: int | None = None,
    output_file: str | None = None,
) -> EvaluationDocument:
    """Let a model play the held-out scenarios, and record success and reward with their intervals.

    Args:
        config: Whose environment, rewards and held-out scenarios are taken.
        model: What is evaluated; the champion of `registry.model_name` if none is named.
        scenarios_file: Played whole, in place of the config's own held-out side.
        num_episodes: Most episodes that are played; all if it is not given.
        output_file: Where the document goes, by default evaluation.json beside the report.

    """
    model = model or f"models:/{config.registry.model_name}@champion"
    config = select_scenarios(config, scenarios_file, num_episodes)
    with shard_runner(config.rollout) as runner:
        ledger = Ledger(runner)
        checkpoint = checkpoint_at(model, config, ledger)
        read = prepare_scenarios(
            config.scenarios,
            ledger,
            config.store,
            validation_fraction=None if scenarios_file is None else 1.0,
            environment=config.environment,
        )
        played = Rollouts(config, ledger, read.data, read.sides).heldout(checkpoint)
        measured = ledger.run(
            measure, scored=played.scored, settings=config.evaluation, seed=config.seed, store=config.store
        )
    document = EvaluationDocument(
        name=config.name,
        model=model,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        scenarios=read.sides.heldout,
        scenarios_digest=read.data.scenarios.sha256[:16],
        code_digest=code_digest(),
        measurement=measured.measurement,
        config=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
    )
    path = Path(output_file) if output_file else home() / config.name / "evaluation.json"
    write_atomically(path, document.model_dump_json(indent=1))
    _attach(document, path)
    return document


def _attach(document: EvaluationDocument, path: Path) -> None:
    """Show the numbers in Prefect's page."""
    found = document.measurement
    create_markdown_artifact(
        f"# {document.model} on the scenarios of {document.name}\n\npolicy {found.policy}, {found.episodes} episodes; "
        f"`{path}`",
        key="evaluation",
    )
    create_table_artifact(
        [_row(name=one.name, success=one.success, reward=one.reward) for one in found.slices], key="standing"
    )
    tries = enumerate(zip(found.pass_at_k, found.pass_hat_k, strict=True), start=1)
    create_table_artifact(
        [_row(name=f"{k} tries", **{"pass@k": once, "pass^k": each}) for k, (once, each) in tries], key="pass-rates"
    )


def _row(*, name: str, **intervals: Interval | None) -> dict[str, str | float | None]:
    row: dict[str, str | float | None] = {"name": name}
    for metric, interval in intervals.items():
        row |= {
            metric: interval and round(interval.mean, 4),
            f"{metric} low": interval and round(interval.low, 4),
            f"{metric} high": interval and round(interval.high, 4),
        }
    return row
