"""`grpo deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import console
from flows.commands.begin import begin


def deploy(
    deployments: Annotated[Path, typer.Option(help="What to deploy.")] = Path("prefect.yaml"),
    gpu_slots: Annotated[
        int | None,
        typer.Option(envvar="GPU_SLOTS", min=1, help="Stages that may hold a GPU at once; the devices of all workers."),
    ] = None,
) -> None:
    """Make work pools, GPU slots and deployments on the server that PREFECT_API_URL names.

    Again after each change of prefect.yaml; `grpo up` does it for the server of this machine.

    Example: grpo deploy --gpu-slots 4
    """
    begin()
    from flows.local.deployments import deploy as make

    make(deployments, gpu_slots=gpu_slots)
    console.print(f"{deployments} is deployed")
