"""The `grpo` command."""

from __future__ import annotations

import signal
import sys

import typer

from flows.cli.doctor import doctor
from flows.cli.errors import bounded
from flows.cli.evaluate import evaluate
from flows.cli.prepare import init
from flows.cli.registry import promote
from flows.cli.servers import up
from flows.cli.train import train
from flows.commands.admit import admit
from flows.commands.databases import databases
from flows.commands.deploy import deploy
from flows.commands.down import down
from flows.commands.env import env
from flows.commands.ingest import ingest
from flows.commands.lineage import lineage
from flows.commands.pretrain import pretrain
from flows.commands.report import report
from flows.commands.reproduce import reproduce
from flows.commands.retrain import retrain
from flows.commands.rollback import rollback
from flows.commands.tune import tune
from flows.commands.ui import ui
from flows.local import settings

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
for command in (
    train, evaluate, tune, retrain, promote, rollback, lineage, reproduce, report,
    init, ingest, admit, doctor, databases, up, down, env, deploy, ui, pretrain,
):  # fmt: skip
    app.command()(bounded(command))


@app.callback()
def main() -> None:
    """Train multi-turn conversational agents, and promote those that got better.

    Exit codes: 0 done, 1 failed, 2 wrong input, 3 a gate refused. GRPO_HOME is the folder of all records, runs if it is
    not set; GRPO_DEBUG=1 tells more.

    Example: grpo init; grpo doctor; grpo train config.yaml
    """
    settings.debug()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped as on Ctrl-C


if __name__ == "__main__":
    app()
