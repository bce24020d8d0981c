"""Prefect's task runners: one background thread for a flow, and threads, Dask or Ray for the stages of a run.

Both clusters run whatever is sent to their ports. Therefore a cluster that a run starts for itself listens only on this
machine, accepts only clients that have its secret, and serves no pages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from grpo.config.rollout import RolloutSettings, Runner
from grpo.errors import ConfigError, install_command

_Entered = AbstractContextManager[TaskRunner[Any]]


def one_thread() -> TaskRunner[Any]:
    """Task runner of a flow: one background thread, in which an update can run during the next rollout."""
    return ThreadPoolTaskRunner(max_workers=1)


def shard_runner(settings: RolloutSettings) -> _Entered:
    """Context of the task runner of rollout shards. It starts and stops the cluster, unless an address is configured.

    Raises `ConfigError` if the package of the runner is not installed.
    """
    try:
        return _RUNNERS[settings.runner](settings)
    except ImportError as error:
        raise ConfigError(
            f"rollout.runner is {settings.runner}, which is not installed ({error}). "
            f"Call {install_command(settings.runner)}, or set it to threads"
        ) from error


def _threads(settings: RolloutSettings) -> _Entered:
    return ThreadPoolTaskRunner(max_workers=settings.workers)


def _dask(settings: RolloutSettings) -> _Entered:
    """Dask replaces dead workers. The run's own cluster asks for a certificate that it makes for itself."""
    from prefect_dask.task_runners import DaskTaskRunner

    logging.getLogger("distributed").setLevel(logging.WARNING)  # it logs each connection
    if settings.dask_address is not None:
        return DaskTaskRunner(address=settings.dask_address)
    import dask

    dask.config.set({f"distributed.{role}.http.routes": [] for role in ("scheduler", "worker", "nanny")})
    local = {"n_workers": settings.workers, "threads_per_worker": 1, "dashboard_address": None, "security": True}
    return DaskTaskRunner(cluster_kwargs=local)


def _ray(settings: RolloutSettings) -> _Entered:
    from grpo_tasks.execution.ray_cluster import ray_runner

    return ray_runner(settings.ray_address, settings.workers)


_RUNNERS: dict[Runner, Callable[[RolloutSettings], _Entered]] = {"threads": _threads, "dask": _dask, "ray": _ray}
