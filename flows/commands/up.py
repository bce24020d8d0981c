"""`grpo up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.arguments import console
from flows.commands.begin import begin


def up(
    deployments: Annotated[Path, typer.Option(help="What to deploy.")] = Path("prefect.yaml"),
) -> None:
    """Start Prefect, MLflow and the workers on this machine, and deploy; what runs already is left alone.

    Then `prefect deployment run train/quickstart --watch` trains, and `grpo down` ends it all.

    Example: grpo up
    """
    home = begin()
    from flows.stack.machine import up as start

    where = start(home, deployments)
    console.print(f"Prefect {where.prefect}   MLflow {where.mlflow}   logs {where.logs}")
    console.print(f"export PREFECT_API_URL={where.prefect}/api", soft_wrap=True)
