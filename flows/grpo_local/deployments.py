"""Work pools, GPU slots and deployments of a Prefect server."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo.config.base import Settings
from grpo.config.loading import apply_overrides, load_settings
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.retraining import RetrainConfig
from grpo.config.tuning import TuneConfig
from grpo.errors import ConfigError
from grpo_local import settings

POOLS = ("cpu", "gpu")
TRAINING = "training"
"""Queue of the pool `cpu` for runs that train. Only one of them runs at a time, whatever its deployment."""
PIPELINE = "grpo.config.pipeline:PipelineConfig"
"""Kind of config of the step `load_parameters`, if the step names none."""
_KINDS = f"Write {PIPELINE}, grpo.config.retraining:RetrainConfig or grpo.config.tuning:TuneConfig"
_OVERRIDES = "GRPO_DEPLOY_SET"
"""Variable by which `prefect deploy` gets the overrides of `grpo deploy`, as JSON."""
JOB_TEMPLATE = {
    "job_configuration": {"env": "{{ env }}"},
    "variables": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "env": {
                "title": "Environment",
                "description": "Variables of the flow run that keep packages silent and offline, and the run patient "
                "with the server. Whatever else it needs is set where its worker is started.",
                "type": "object",
                "propertyNames": {"enum": sorted(settings.run_variables())},
                "additionalProperties": {"type": "string"},
                "default": {},
            }
        },
    },
}
"""Job variables that are allowed for a flow run in a process. Not allowed is what starts another program (`command`),
changes the folder (`working_dir`), or adds code that is not deployed (`PYTHONPATH`, `LD_PRELOAD`, …). The server
refuses all other variables, and a worker would ignore them."""


def deploy(deployments: Path, *, gpu_slots: int | None = None, overrides: Sequence[str] = ()) -> None:
    """Create pools, queue, GPU slots, automations and the deployments of a file, on the server of PREFECT_API_URL.

    `overrides` are laid over each run's config, e.g. for settings that all runs of a cluster share: its store, and the
    stages that are sent to its GPUs. Paths in the file are relative to the folder of the file, which is also its
    `$PWD`, whatever the working directory is.

    Existing pools stay unchanged except for the job template of process pools. Existing slots change only if
    `gpu_slots` is given. Otherwise new slots are as many as this machine has devices, and at least one. Deployments are
    updated. If a schedule is paused, it stays paused.

    Raises `ConfigError` if the file or the server is missing, or if Prefect refuses a deployment.
    """
    if not deployments.is_file():
        raise ConfigError(
            f"the file {deployments} does not exist. Run the command in its folder, or name another file with "
            "--deployments"
        )
    if not os.environ.get("PREFECT_API_URL"):
        raise ConfigError(
            "PREFECT_API_URL is not set. Set it to the address of Prefect's server, or start one here with grpo up"
        )
    from grpo_tasks.execution.gpu_slots import create_slots

    _create_pools()
    create_slots(gpu_slots)
    _create_automations()
    folder = deployments.parent.resolve()
    file = str(folder / deployments.name)
    process = subprocess.run(
        [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PWD": str(folder), _OVERRIDES: json.dumps(list(overrides))},
    )
    if process.returncode:
        raise ConfigError(f"{deployments} cannot be deployed:\n{process.stdout.strip()[-2000:]}")


def load_parameters(file: str | None = None, kind: str = PIPELINE) -> dict[str, Any]:
    """Step of `prefect deploy`: a YAML file as the parameter `config`, and the variables of runs as `environment`.

    Raises `ConfigError` if the file, the kind or an override of `grpo deploy` cannot be used.
    """
    config = load_deployed(file, settings_class(kind), json.loads(os.environ.get(_OVERRIDES, "[]"))) if file else None
    return {
        "config": config.model_dump(mode="json", exclude_unset=True) if config else {},
        "environment": settings.run_variables(),
    }


def load_deployed(file: str | Path, kind: type[Settings], overrides: Sequence[str]) -> Settings:
    """Read a config and lay the overrides over it, and over the run that a retraining repeats or a study varies.

    Raises `ConfigError`.
    """
    if issubclass(kind, PipelineConfig):
        return load_config(file, tuple(overrides))
    config = load_settings(file, kind)
    if isinstance(config, RetrainConfig):
        config = config.model_copy(update={"overrides": (*config.overrides, *overrides)})
        config.load_pipeline()  # so that a run that could never begin is refused before it is scheduled
    if not overrides:
        return config
    if isinstance(config, TuneConfig):
        config = config.model_copy(update={"base": apply_overrides(config.base, tuple(overrides))})
    return config


def settings_class(kind: str) -> type[Settings]:
    """Class of the settings that `kind` of the step `load_parameters` names as `module:name`.

    Raises `ConfigError` if it does not exist or is not a class of settings.
    """
    try:
        named = pkgutil.resolve_name(kind)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"kind {kind!r} cannot be imported: {error}. {_KINDS}") from error
    if not (isinstance(named, type) and issubclass(named, Settings)):
        raise ConfigError(f"kind {kind!r} is not a class of settings. {_KINDS}")
    return named


def _create_pools() -> None:
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


def _create_automations() -> None:
    from prefect import get_client

    from grpo_local.automations import write_automations

    with get_client(sync_client=True) as client:
        write_automations(client, POOLS, sender=POOLS[0])
