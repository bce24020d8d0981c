"""What a Prefect server needs before runs can be sent to it: work pools, GPU slots and deployments."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from flows.local import settings
from grpo.errors import ConfigError

POOLS = ("cpu", "gpu")
TRAINING = "training"
"""The queue of the pool `cpu` whose runs train: one at a time, of whatever deployment."""
GPU_SLOTS = "gpu"
"""The global concurrency limit whose slots are devices."""
JOB_TEMPLATE = {
    "job_configuration": {"env": "{{ env }}"},
    "variables": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "env": {
                "title": "Environment",
                "description": "Variables of the flow run that keep packages silent and offline. Whatever else it "
                "needs is set where its worker is started.",
                "type": "object",
                "propertyNames": {"enum": sorted(settings.quiet())},
                "additionalProperties": {"type": "string"},
                "default": {},
            }
        },
    },
}
"""Job variables of a flow run that becomes a process: none that starts another program (`command`), in another folder
(`working_dir`), or with code not deployed (`PYTHONPATH`, `LD_PRELOAD`, …). The server refuses all others, and a
worker that got one would not read it."""


def deploy(deployments: Path, *, gpu_slots: int | None = None) -> None:
    """Make pools, their queue of trainings, slots and the deployments of a file on the server of PREFECT_API_URL.

    Paths in the file count from its own folder, which is also its `$PWD`, wherever this is called.

    What is there stays as it is, but for a number of slots that is given, and the job template of pools of processes.
    Without a number there are as many slots as this machine has devices, and at least one. Deployments are brought up
    to date; a schedule that was paused stays so.

    Raises `ConfigError` where there is no file or no server, or a deployment cannot be made.
    """
    if not deployments.is_file():
        raise ConfigError(f"no deployments at {deployments}; call this in the project's folder, or name a file")
    if not os.environ.get("PREFECT_API_URL"):
        raise ConfigError("PREFECT_API_URL names no server; set it, or start one on this machine with grpo up")
    _make_pools()
    _make_slots(gpu_slots)
    folder = deployments.parent.resolve()
    file = str(folder / deployments.name)
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PWD": str(folder)},
    )
    if done.returncode:
        raise ConfigError(f"{deployments} cannot be deployed:\n{done.stdout.strip()[-2000:]}")


def _make_pools() -> None:
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists

    with get_client(sync_client=True) as client:
        for name in POOLS:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=JOB_TEMPLATE))
            pool = client.read_work_pool(name)
            if pool.type == "process" and pool.base_job_template != JOB_TEMPLATE:
                client.update_work_pool(name, WorkPoolUpdate(base_job_template=JOB_TEMPLATE))
        with suppress(ObjectAlreadyExists):
            client.create_work_queue(TRAINING, work_pool_name=POOLS[0], concurrency_limit=1)


def _make_slots(number: int | None) -> None:
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        if number is None:
            try:
                client.read_global_concurrency_limit_by_name(GPU_SLOTS)
                return
            except ObjectNotFound:
                import torch

                number = max(1, torch.cuda.device_count())
        client.upsert_global_concurrency_limit_by_name(GPU_SLOTS, number)
