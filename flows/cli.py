"""The `grpo` command."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from grpo.config.pipeline import load_config
from grpo.errors import ConfigError, GRPOError
from rich.console import Console

from flows import settings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console()


@app.callback()
def main() -> None:
    """Train multi-turn conversational agents, and promote those that got better."""


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="YAML file; the shipped ones are in data/configs.")],
    override: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the file; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Check the config and stop.")] = False,
) -> None:
    """Run the pipeline: ingest, validate, split, rollout, score, train, evaluate, gate, register, report."""
    home = settings.apply()
    try:
        plan = load_config(config, tuple(override or ()))
    except ConfigError as error:
        _fail(error, code=2)
    if dry_run:
        console.print(f"{config} is a valid configuration of run {plan.name}")
        return
    began = time.time()
    try:
        from flows.server import prefect_server

        with prefect_server(home) as url:
            from grpo.evaluation.report import read_report

            from flows.terminal import live, print_summary
            from flows.train import train as flow

            console.print(f"run {plan.name}: Prefect at {url}, records in {home}", highlight=False)
            try:
                with live(console, iterations=plan.training.iterations):
                    flow(plan)
            finally:
                page = home / plan.name / "report.html"
                if page.exists() and page.stat().st_mtime >= began:
                    print_summary(console, read_report(page.with_suffix(".json")))
                    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    except GRPOError as error:
        _fail(error, code=1)


@app.command()
def pretrain(
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 2600,
) -> None:
    """Make the embedded scenario pack and base model again."""
    home = settings.apply()
    from grpo.config.pretrain import PretrainConfig

    from flows.server import prefect_server

    with prefect_server(home):
        from flows.pretrain import pretrain as flow
        from flows.terminal import live

        with live(console, iterations=1):
            console.print(f"last loss {flow(PretrainConfig(steps=steps)):.4f} nats a token")


def _fail(error: GRPOError, *, code: int) -> None:
    """Say what is wrong without a traceback; 2 is a config that cannot be used, 1 a run that failed."""
    Console(stderr=True).print(f"[red]{type(error).__name__}[/]: {error}", highlight=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    app()
