"""`grpo train`."""

from __future__ import annotations

import gc
import importlib
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import ConfigFile, Overrides, console
from flows.cli.errors import REFUSED
from flows.commands.begin import begin
from flows.local import settings
from grpo.config.pipeline import PipelineConfig, load_config


def train(
    config: ConfigFile,
    override: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what the run would do, and stop.")] = False,
) -> None:
    """Run the pipeline: ingest, validate, split, rollout, score, train, evaluate, gate, register, report.

    What an earlier run has computed is not computed again: to resume a run that was ended, start it again. The exit
    code is 3 when a gate refuses the candidate.

    Example: grpo train data/configs/quickstart.yaml --set training.iterations=5 --dry-run
    """
    home = begin()
    plan = load_config(config, tuple(override or ()))
    if dry_run:
        _show(plan, home, origin=str(config))
        return
    began = time.time()
    settings.mark_start()
    from flows.cli.preflight import check_files

    check_files(plan)
    from flows.local.servers import prefect_server

    with prefect_server(home, meanwhile=_import_ahead) as url:
        from flows.cli.display import live, print_summary
        from flows.train import train as flow
        from grpo.evaluation.report import read_report

        console.print(f"run {plan.name}: Prefect at {url}, records in {home}")
        try:
            with live(console, iterations=plan.training.iterations):
                promotion = flow(plan)
        finally:
            page = home / plan.name / "report.html"
            if page.exists() and page.stat().st_mtime >= began:
                print_summary(console, read_report(page.with_suffix(".json")))
                console.print(f"report: {page}", soft_wrap=True)
    if promotion.decision.verdict != "promote":
        raise typer.Exit(REFUSED)


def _show(config: PipelineConfig, home: Path, *, origin: str) -> None:
    """Print the plan; Prefect, which makes its home folder when it is imported, makes one that does not stay."""
    kept = os.environ["PREFECT_HOME"]
    with tempfile.TemporaryDirectory() as nowhere:
        os.environ["PREFECT_HOME"] = nowhere
        try:
            from flows.cli.display import print_dry_run
            from flows.cli.preflight import preflight
            from flows.doctor.servers import servers
            from flows.dry_run import dry_run as follow
            from flows.local.checks import require

            require(servers(home))
            preflight(config)
            planned = follow(config)
            console.print(f"{origin} is a valid configuration of run {config.name}", soft_wrap=True)
            print_dry_run(console, planned)
        finally:
            os.environ["PREFECT_HOME"] = kept


def _import_ahead() -> None:
    """Load what takes seconds while the server takes as long to start."""
    gc.disable()  # a fifth of the time would go into looking for garbage among modules, which stay
    for name in ("flows.train", "grpo.evaluation.html_report", "great_expectations", "mlflow"):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
