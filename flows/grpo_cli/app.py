"""The `grpo` command."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated

import typer

from grpo.errors import DISTRIBUTION
from grpo.interrupts import end_by_signals
from grpo_cli.erase import erase
from grpo_cli.errors import with_exit_codes
from grpo_cli.evaluate import evaluate
from grpo_cli.keys import keys
from grpo_cli.prepare import check_reward, doctor, ingest, init, schema
from grpo_cli.registry import admit, export, lineage, models, promote, reproduce, rollback
from grpo_cli.runs import explain, report, runs, show
from grpo_cli.serve import serve
from grpo_cli.servers import deploy, down, env, migrate, ui, up
from grpo_cli.store import registry, store
from grpo_cli.train import pretrain, retrain, train, tune
from grpo_cli.train_node import train_node
from grpo_cli.verify_log import verify_log
from grpo_local import settings

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
for command in (
    train, evaluate, tune, retrain, promote, rollback, admit, lineage, reproduce, runs, report, show, explain, models,
    export, init, schema, ingest, check_reward, doctor, migrate, up, down, env, deploy, ui, serve, verify_log, erase,
    pretrain, train_node,
):  # fmt: skip
    app.command()(with_exit_codes(command))
app.add_typer(keys, name="keys")
app.add_typer(store, name="store")
app.add_typer(registry, name="registry")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"grpo {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train multi-turn conversational agents, and promote those that improve.

    Exit codes: 0 done, 1 failed, 2 wrong input, 3 a gate refused. All records are kept in the folder that
    GRPO_HOME names, or in `runs` if it is not set. If GRPO_DEBUG is 1, debug messages and the start of each stage are
    logged.

    Example: grpo init shop; cd shop; grpo train grpo.yaml
    """
    settings.enable_debug_logging()


def run() -> None:
    """Run the command of this process. A program that calls `app` instead keeps its own signal handlers."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that is not UTF-8 fails no run
            with suppress(OSError):  # some streams report that they can seek, but cannot
                stream.reconfigure(errors="backslashreplace")
    end_by_signals()  # so that started servers are also stopped on SIGTERM, and not only on Ctrl-C
    app(prog_name="grpo")
