"""Plan of a deployment: pools, queue, deployments and schedules of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo.errors import ConfigError
from grpo_flows.plans.outline import Outline
from grpo_local.deployments import PIPELINE, POOLS, TRAINING, load_deployed, settings_class
from grpo_tasks.execution.gpu_slots import LIMIT

_STEP = "load_parameters"


def plan_deployments(file: Path, *, gpu_slots: int | None, overrides: Sequence[str] = ()) -> Outline:
    """Read a file of deployments and the configs that it names, without asking a server.

    Raises `ConfigError` if the file or a config cannot be used.
    """
    if not file.is_file():
        raise ConfigError(
            f"the file {file} does not exist. Run the command in its folder, or name another file with --deployments"
        )
    try:
        deployments = yaml.safe_load(file.read_text(encoding="utf-8"))["deployments"]
        facts = {_title(deployment): _describe(deployment, file.parent, overrides) for deployment in deployments}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(f"{file} is not a file of deployments: {error!r}") from error
    slots = (
        f"{gpu_slots}"
        if gpu_slots is not None
        else "unchanged if there are any, else one for each device of this machine"
    )
    return Outline(
        title=f"deployments of {file}. Existing ones are updated, a paused schedule stays paused",
        facts={
            "work pools": f"{', '.join(POOLS)} of type process",
            "queue": f"{TRAINING} in pool {POOLS[0]}, one run at a time",
            f"limit {LIMIT}": slots,
            **({"over each config": ", ".join(overrides)} if overrides else {}),
            **facts,
        },
    )


def _title(deployment: Mapping[str, Any]) -> str:
    return f"{deployment['entrypoint'].rpartition('.')[2]}/{deployment['name']}"


def _describe(deployment: Mapping[str, Any], folder: Path, overrides: Sequence[str]) -> str:
    pool = deployment["work_pool"]
    queue = f", queue {pool['work_queue_name']}" if pool.get("work_queue_name") else ""
    parts = [f"pool {pool['name']}{queue}", *map(_schedule, deployment.get("schedules", ()))]
    parts += [f"trigger {trigger['name']}" for trigger in deployment.get("triggers", ())]
    return "; ".join((*parts, *_configs(deployment, folder, overrides)))


def _schedule(schedule: Mapping[str, Any]) -> str:
    when = schedule.get("cron") or schedule.get("interval") or schedule.get("rrule")
    return f"schedule {when} {schedule.get('timezone', 'UTC')}"


def _configs(deployment: Mapping[str, Any], folder: Path, overrides: Sequence[str]) -> Iterator[str]:
    """Configs that the build steps load, which must be valid."""
    for step in deployment.get("build") or ():
        for name, options in step.items():
            if name.endswith(_STEP) and options.get("file"):
                try:
                    kind = settings_class(options.get("kind", PIPELINE))
                except ConfigError as error:
                    raise ConfigError(f"deployment {_title(deployment)}: build, {_STEP}: {error}") from error
                load_deployed(folder / options["file"], kind, overrides)
                yield f"config {options['file']}"
