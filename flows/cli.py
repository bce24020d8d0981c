"""The `grpo` command."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from flows import settings
from grpo.config.pipeline import load_config
from grpo.errors import ConfigError, GRPOError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console()


@app.callback()
def main() -> None:
    """Train multi-turn conversational agents, and promote those that got better."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped as on Ctrl-C


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
    settings.command_began()
    try:
        from flows.server import prefect_server

        with prefect_server(home, meanwhile=_import_ahead) as url:
            from flows.terminal import live, print_summary
            from flows.train import train as flow
            from grpo.evaluation.report import read_report

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
def ingest(
    config: Annotated[Path, typer.Argument(help="YAML file whose scenarios are read.")],
    override: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the file.")] = None,
    folder: Annotated[Path, typer.Option(help="Where the tables and the Data Docs are written.")] = Path("runs/ingest"),
) -> None:
    """Read, validate and split the scenarios of a config, and train nothing."""
    settings.apply()
    try:
        plan = load_config(config, tuple(override or ())).scenarios
        from grpo.scenarios import expectations, split
        from grpo.scenarios.ingest import ingest as read

        folder.mkdir(parents=True, exist_ok=True)
        tables = folder / "scenarios.parquet", folder / "quarantine.parquet"
        bound = plan.max_quarantined_share
        counts = read(plan.sources, *tables, max_quarantined_share=bound)
        console.print(f"{counts.records} records: {counts.scenarios} scenarios, {counts.quarantined} quarantined")
        for reason, count in counts.reasons.items():
            console.print(f"  {count} × {reason}", highlight=False)
        found = expectations.validate(*tables, counts, folder / "data_docs", max_quarantined_share=bound)
        console.print(f"{len(found.checks)} expectations hold; {folder / 'data_docs' / found.docs_index}")
        sides = split.split(tables[0], heldout_share=plan.heldout_share, limit=plan.limit)
        console.print(f"{len(sides.train)} to train on, {len(sides.heldout)} held out")
    except GRPOError as error:
        _fail(error, code=2 if isinstance(error, ConfigError) else 1)


@app.command()
def admit(
    reward: Annotated[str, typer.Argument(help="Name of a reward, of this package or of a plugin.")],
    option: Annotated[list[str] | None, typer.Option("--set", help="option=value; may be repeated.")] = None,
) -> None:
    """Try a reward on replies that deserve little, and show what it gives them; exit code 1 if one fools it."""
    from flows.terminal import print_admission
    from grpo.rewards.admission import examine
    from grpo.rewards.catalog import reward_named

    try:
        options = {key: yaml.safe_load(value) for key, _, value in (one.partition("=") for one in option or ())}
        findings = examine(reward_named(reward, **options))
    except GRPOError as error:
        _fail(error, code=2)
    print_admission(console, reward, findings)
    if any(finding.fooled for finding in findings):
        sys.exit(1)


@app.command()
def init() -> None:
    """Create the databases in which runs keep their records, or bring them up to date."""
    home = settings.apply()
    from flows.server import create_databases

    try:
        create_databases(home)
    except GRPOError as error:
        _fail(error, code=1)


@app.command()
def ui() -> None:
    """Show the runs so far in Prefect's and MLflow's own pages, on this machine only, until interrupted."""
    home = settings.apply()
    from flows.server import mlflow_server, prefect_server

    try:
        with prefect_server(home) as prefect_url, mlflow_server(home) as mlflow_url:
            console.print(f"Prefect {prefect_url.removesuffix('/api')}   MLflow {mlflow_url}   Ctrl-C ends both")
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        return
    except GRPOError as error:
        _fail(error, code=1)


@app.command()
def pretrain() -> None:
    """Make the embedded scenario pack and base model again; takes twenty minutes on two cores."""
    home = settings.apply()
    from flows.server import prefect_server
    from grpo.config.pretrain import PretrainConfig

    with prefect_server(home):
        from flows.pretrain import pretrain as flow
        from flows.terminal import live

        with live(console, iterations=1):
            console.print(f"last loss {flow(PretrainConfig()):.4f} nats a token")


def _import_ahead() -> None:
    """Load what takes seconds while the server takes as long to start."""
    gc.disable()  # a fifth of the time would go into looking for garbage among modules, which stay
    for name in ("flows.train", "grpo.evaluation.page", "great_expectations", "mlflow"):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()


def _fail(error: GRPOError, *, code: int) -> None:
    """Say what is wrong without a traceback; 2 is a config that cannot be used, 1 a run that failed."""
    Console(stderr=True).print(f"[red]{type(error).__name__}[/]: {error}", highlight=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    app()
