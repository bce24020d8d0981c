"""Prefect's task runners: threads of this process, or a Dask cluster."""

from __future__ import annotations

import logging
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from grpo.config.rollout import RolloutSettings
from grpo.errors import ConfigError, install_command


def one_thread() -> TaskRunner[Any]:
    """Task runner of a flow: one background thread, in which an update can run during the next rollout."""
    return ThreadPoolTaskRunner(max_workers=1)


def shard_runner(settings: RolloutSettings) -> TaskRunner[Any]:
    """Task runner of rollout shards: threads of this process, or a Dask cluster, which replaces dead workers.

    Dask runs whatever is sent to its ports. Therefore a cluster that is started here accepts only clients with the
    certificate that it makes for itself, and it serves no pages.

    Raises `ConfigError` if Dask is configured and not installed.
    """
    if settings.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=settings.workers)
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise ConfigError(
            f"rollout.runner is dask, which is not installed ({error}). Call {install_command('dask')}, or "
            "set it to threads"
        ) from error
    logging.getLogger("distributed").setLevel(logging.WARNING)  # it logs each connection
    if settings.dask_address is not None:
        return DaskTaskRunner(address=settings.dask_address)
    import dask

    dask.config.set({f"distributed.{role}.http.routes": [] for role in ("scheduler", "worker", "nanny")})
    local = {"n_workers": settings.workers, "threads_per_worker": 1, "dashboard_address": None, "security": True}
    return DaskTaskRunner(cluster_kwargs=local)
