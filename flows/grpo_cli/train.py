"""Commands that train: train, retrain, tune, pretrain."""

from __future__ import annotations

import time
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_cli.command import ConfigFile, Overrides, console, start_command
from grpo_cli.dry_runs import DryRunOption, print_outline, scratch_services
from grpo_cli.errors import REFUSED
from grpo_local import settings

if TYPE_CHECKING:
    from grpo.config.pipeline import PipelineConfig
    from grpo.preflight.table import Depth


def train(
    config: ConfigFile,
    override: Overrides = None,
    dry_run: DryRunOption = False,
) -> None:
    """Run the pipeline: ingest, validate, split, rollout, score, train, evaluate, gate, register, report.

    Use it when a config is ready. Finished stages of earlier runs are cache hits, so start an interrupted run again to
    resume it. If a gate refuses the candidate, the exit code is 3.

    Example: grpo train data/configs/quickstart.yaml --set training.iterations=5 --dry-run
    """
    home = start_command()
    from grpo.config.pipeline import load_config

    pipeline = load_config(config, tuple(override or ()))
    if dry_run:
        _dry_run(pipeline, home, origin=config)
        return
    started_at = time.time()
    settings.mark_start()
    from grpo_local.servers import prefect_server, running_prefect_server

    server_starts = running_prefect_server(home) is None
    check = cache(partial(_check, pipeline, server_starts=server_starts))  # each depth once
    if not (is_repeated := _is_repeated(pipeline, home)):
        check("files")  # what is refused leaves nothing in the home, so no server is started before
    imports = partial(_import_packages, is_repeated=is_repeated, server_starts=server_starts)
    with prefect_server(home, check=check, while_starting=imports) as url:
        from grpo.evaluation.report import read_report
        from grpo_cli.console import show_progress
        from grpo_cli.display import print_summary
        from grpo_flows.train import train as flow

        console.print(f"run {pipeline.name}: Prefect at {url}, records in {home}")
        try:
            with show_progress(console, iterations=pipeline.training.iterations):
                promotion = flow(pipeline)
        finally:
            page = home / pipeline.name / "report.html"
            if page.exists() and page.stat().st_mtime >= started_at:
                print_summary(console, read_report(page.with_suffix(".json")))
                console.print(f"report: {page}", soft_wrap=True)
    if promotion.decision.verdict != "promote":
        raise typer.Exit(REFUSED)


def _check(config: PipelineConfig, depth: Depth, *, server_starts: bool) -> None:
    """Run the preflight checks while the server starts, so that a faulty config is refused early.

    The flow skips the checks that were made here. If the server runs already, there is nothing to wait for, so the flow
    makes the checks that import torch or MLflow.
    """
    from grpo_local import preflight

    if depth == "files" or server_starts:
        preflight.check(config, depth=depth)


def _import_packages(*, is_repeated: bool, server_starts: bool) -> None:
    """Import what the flow needs. A repeated run has cache hits, which need neither PyTorch nor Great Expectations.

    If one of its stages is computed nevertheless, it imports them.
    """
    settings.import_packages("grpo_flows.train", "grpo.evaluation.html_report", "mlflow")
    if not is_repeated:
        settings.import_packages(*settings.LEARNER)
        if server_starts:  # the import takes three seconds, in which the server starts
            settings.import_packages("great_expectations")


def _is_repeated(config: PipelineConfig, home: Path) -> bool:
    """True if the last report of this run has the same code and settings, except for its gates, which a run completes.

    Its config was not refused then, so the server is started before the checks, and its stages are cache hits.
    """
    import yaml

    from grpo.errors import DataError
    from grpo.evaluation.report import read_report
    from grpo.identity.code import code_digest

    try:
        last = read_report(home / config.name / "report.json")
    except DataError:
        return False
    given = {**config.model_dump(mode="json"), "gates": None}
    return last.lineage.code_digest == code_digest() and {**yaml.safe_load(last.config), "gates": None} == given


def _dry_run(config: PipelineConfig, home: Path, *, origin: str) -> None:
    """Print what a run would do."""
    with scratch_services():
        from grpo_cli.display import print_dry_run
        from grpo_flows.dry_run import dry_run as estimate
        from grpo_local.checks import check_servers, require

        require(check_servers(home))
        planned = estimate(config)
        console.print(f"{origin} is a valid configuration of run {config.name}", soft_wrap=True)
        print_dry_run(console, planned)


def retrain(
    config: ConfigFile,
    override: Overrides = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check the triggers without training. If one fires, and there is a champion, emit the event "
            "grpo.drift-detected on Prefect's server.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Train the champion on new conversations if a trigger fires, and otherwise end in seconds with exit code 0.

    Use it when a model is in service and its conversations are logged, for example every night.

    Example: grpo retrain data/configs/retrain.yaml --set curation.near_duplicate_threshold=0.9
    """
    home = start_command()
    from grpo.config.loading import load_settings
    from grpo.config.retraining import RetrainConfig

    retraining = load_settings(config, RetrainConfig, tuple(override or ()))
    if dry_run:
        with scratch_services():
            from grpo_cli.display import print_triggers
            from grpo_flows.plans.retrain import plan_retraining

            outline, results = plan_retraining(retraining)
            print_outline(console, outline)
            if results:
                print_triggers(console, results)
        console.print(
            f"for the training that a trigger starts: grpo train {retraining.pipeline} --dry-run", soft_wrap=True
        )
        return
    from grpo_local.preflight import check_retraining
    from grpo_local.servers import prefect_environment, prefect_server, running_prefect_server

    pipeline = check_retraining(retraining, depth="files")

    if not check and running_prefect_server(home) is None:
        with prefect_environment(home):
            settings.import_packages("grpo_flows.retrain", "mlflow")
            from grpo_cli.display import print_retraining
            from grpo_flows.retrain import retrain_if_idle

            home.mkdir(parents=True, exist_ok=True)
            idle = retrain_if_idle(retraining, pipeline)
        if idle is not None:
            print_retraining(console, idle, path=home / retraining.name / "retraining.json")
            return
    packages = ("grpo_flows.watch", "mlflow") if check else ("grpo_flows.retrain", "mlflow")
    with prefect_server(home, while_starting=partial(settings.import_packages, *packages)) as url:
        from grpo_cli.console import show_progress
        from grpo_cli.display import print_retraining, print_triggers

        console.print(f"run {retraining.name}: Prefect at {url}, records in {home}")
        if check:
            from grpo_flows.watch import EVENT, watch

            with show_progress(console):
                triggers = watch(retraining)
            print_triggers(console, triggers.results)
            console.print(f"{EVENT} emitted" if triggers.drifted else triggers.summary, soft_wrap=True)
            return
        from grpo_flows.retrain import retrain as flow

        with show_progress(console, iterations=pipeline.training.iterations):
            report = flow(retraining)
        print_retraining(console, report, path=home / retraining.name / "retraining.json")
    if report.verdict == "refuse":
        raise typer.Exit(REFUSED)


def tune(
    config: ConfigFile,
    override: Overrides = None,
    trials: Annotated[int | None, typer.Option(help="Total number of trials of the study.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Trials that run at the same time.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Database of the study: sqlite:///PATH or postgresql://user@host/database with PGPASSWORD."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Tune the hyperparameters of a run, and write the best as a config for `grpo train`.

    Use it when you do not know good values of the learning rate or the like. If the study is interrupted, the same
    command continues it.

    Example: grpo tune data/configs/tune.yaml --trials 20
    """
    home = start_command()
    from grpo.config.loading import load_settings
    from grpo.config.tuning import TuneConfig

    options = {"n_trials": trials, "parallel": parallel, "storage": storage}
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    tuning = load_settings(config, TuneConfig, (*(override or ()), *given))
    if dry_run:
        with scratch_services():
            from grpo_flows.plans.tune import plan_study

            print_outline(console, plan_study(tuning))
        return
    from grpo_local.preflight import check_tuning
    from grpo_local.servers import prefect_server

    check_tuning(tuning, depth="files")

    packages = ("grpo_flows.tune", "mlflow", *settings.LEARNER)
    with prefect_server(home, while_starting=partial(settings.import_packages, *packages)) as url:
        from grpo.tuning.document import DOCUMENT, StudyDocument
        from grpo_cli.console import show_progress
        from grpo_cli.display import print_study
        from grpo_flows.tune import tune as flow

        console.print(f"study {tuning.name}: Prefect at {url}, records in {home}")
        with show_progress(console):
            tuned = flow(tuning)
        document = StudyDocument.model_validate_json((home / tuning.name / DOCUMENT).read_bytes())
        print_study(console, document.study)
        console.print(f"best config: {tuned.config}", soft_wrap=True)
        console.print(f"report: {tuned.report}", soft_wrap=True)


def pretrain(dry_run: DryRunOption = False) -> None:
    """Make the shipped scenario pack and base model again, which takes twenty minutes on two cores.

    Use it when you have changed how they are made, in a checkout of the sources.

    Example: grpo pretrain
    """
    home = start_command()
    from grpo.config.pretrain import PretrainConfig

    if dry_run:
        with scratch_services():
            from grpo_flows.plans.pretrain import plan_pretraining

            print_outline(console, plan_pretraining(PretrainConfig()))
        return
    from grpo_local.servers import prefect_server

    with prefect_server(home):
        from grpo_cli.console import show_progress
        from grpo_flows.pretrain import pretrain as flow

        with show_progress(console):
            console.print(f"last loss {flow(PretrainConfig()):.4f} nats per token")
