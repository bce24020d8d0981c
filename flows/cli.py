"""The `grpo` command."""

from __future__ import annotations

import signal
import sys

import typer

from flows.commands.admit import admit
from flows.commands.databases import databases
from flows.commands.down import down
from flows.commands.ingest import ingest
from flows.commands.pretrain import pretrain
from flows.commands.train import train
from flows.commands.ui import ui
from flows.commands.up import up

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for command in (train, ingest, admit, databases, ui, pretrain, up, down):
    app.command()(command)


@app.callback()
def main() -> None:
    """Train multi-turn conversational agents, and promote those that got better."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped as on Ctrl-C


if __name__ == "__main__":
    app()
