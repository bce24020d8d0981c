"""Where the shards of a rollout are played."""

from __future__ import annotations

import logging
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from grpo.config.rollout import RolloutSettings
from grpo.errors import ConfigError


def shard_runner(settings: RolloutSettings) -> TaskRunner[Any]:
    """Threads of this process, or the processes of a Dask cluster; its nannies put new workers in place of dead ones.

    Raises `ConfigError` when Dask is asked for and not installed.
    """
    if settings.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=settings.workers)
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise ConfigError(
            f"rollout.runner is dask, which is not installed ({error}); pip install 'grpo[dask]', or set it to threads"
        ) from error
    logging.getLogger("distributed").setLevel(logging.WARNING)  # it tells of each connection
    if settings.dask_address is not None:
        return DaskTaskRunner(address=settings.dask_address)
    local = {"n_workers": settings.workers, "threads_per_worker": 1, "dashboard_address": None}
    return DaskTaskRunner(cluster_kwargs=local)
