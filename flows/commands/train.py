"""`grpo train`."""

from __future__ import annotations

import gc
import importlib
import time
from typing import Annotated

import typer

from flows import settings
from flows.commands.arguments import ConfigFile, Overrides, console
from flows.commands.exits import REFUSED, exits
from grpo.config.pipeline import load_config


def train(
    config: ConfigFile,
    override: Overrides = None,
    dry_run: Annotated[bool, typer.Option(help="Check the config and stop.")] = False,
) -> None:
    """Run the pipeline: ingest, validate, split, rollout, score, train, evaluate, gate, register, report."""
    home = settings.apply()
    with exits():
        plan = load_config(config, tuple(override or ()))
        if dry_run:
            console.print(f"{config} is a valid configuration of run {plan.name}")
            return
        began = time.time()
        settings.command_began()
        from flows.server import prefect_server

        with prefect_server(home, meanwhile=_import_ahead) as url:
            from flows.terminal import live, print_summary
            from flows.train import train as flow
            from grpo.evaluation.report import read_report

            console.print(f"run {plan.name}: Prefect at {url}, records in {home}", highlight=False)
            try:
                with live(console, iterations=plan.training.iterations):
                    promotion = flow(plan)
            finally:
                page = home / plan.name / "report.html"
                if page.exists() and page.stat().st_mtime >= began:
                    print_summary(console, read_report(page.with_suffix(".json")))
                    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    if promotion.decision.verdict != "promote":
        raise typer.Exit(REFUSED)


def _import_ahead() -> None:
    """Load what takes seconds while the server takes as long to start."""
    gc.disable()  # a fifth of the time would go into looking for garbage among modules, which stay
    for name in ("flows.train", "grpo.evaluation.page", "great_expectations", "mlflow"):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
