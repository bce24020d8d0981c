"""`grpo up`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import console
from flows.commands.begin import begin


def up(
    deployments: Annotated[Path, typer.Option(help="What to deploy.")] = Path("prefect.yaml"),
) -> None:
    """Start Prefect, MLflow and the workers on this machine, and deploy; what runs already is left alone.

    Then `eval "$(grpo env)"` lets Prefect's own commands in, `prefect deployment run train/quickstart --watch` trains,
    and `grpo down` ends it all.

    Example: grpo up
    """
    home = begin()
    from flows.local.login import password_hint
    from flows.local.stack import up as start

    where = start(home, deployments)
    console.print(f"Prefect {where.prefect}   MLflow {where.mlflow}   logs {where.logs}")
    if "PREFECT_API_URL" not in os.environ:
        console.print(password_hint(home), soft_wrap=True)
        console.print('Prefect\'s commands: eval "$(grpo env)"', soft_wrap=True)
