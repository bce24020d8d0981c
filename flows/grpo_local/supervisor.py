"""Supervisor of the stack: restarts dead servers and workers, and reschedules the runs of dead workers.

It has no state of its own. If it is killed, the next `grpo up` replaces it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.storage.error_lines import log_to_stderr
from grpo_local import settings
from grpo_local.deployments import POOLS
from grpo_local.restarts import restart_if_dead, supervise_once
from grpo_local.servers import mlflow_server, mlflow_service, prefect_server, prefect_service
from grpo_local.service_logs import rotate_logs
from grpo_local.serving import supervised_server
from grpo_local.stack import worker_name, worker_service

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

logger = logging.getLogger("grpo_local.supervisor")
_PAUSE_S = 5.0


def supervise(home: Path) -> None:
    """Supervise the stack of this home until this process is stopped."""
    checks: dict[str, Callable[[], None]] = {"logs": partial(rotate_logs, home / "services")}
    if "PREFECT_API_URL" not in os.environ:
        checks["prefect"] = partial(restart_if_dead, prefect_service(home), wait=True)  # the pools need it
    if not os.environ["MLFLOW_TRACKING_URI"].startswith("http"):
        checks["mlflow"] = partial(restart_if_dead, mlflow_service(home))
    with prefect_server(home, for_pages=True) as prefect_url, mlflow_server(home) as mlflow_url:
        from prefect import get_client  # Prefect reads its address at import

        with get_client(sync_client=True) as client:  # one for all checks, because each reads all certificates
            for pool in POOLS:
                checks[pool] = partial(_check_pool, client, home, pool, prefect_url=prefect_url, mlflow_url=mlflow_url)
            checks["serve"] = partial(_check_serving, home, prefect_url=prefect_url, mlflow_url=mlflow_url)
            while True:
                supervise_once(checks)
                time.sleep(_PAUSE_S)


def _check_pool(client: SyncPrefectClient, home: Path, pool: str, *, prefect_url: str, mlflow_url: str) -> None:
    """Reschedule the runs that the worker of a pool has lost, and then restart the worker if it is dead."""
    from grpo_local.workers.recovery import reschedule_lost_runs  # Prefect reads its address at import

    worker = worker_service(home, pool, prefect_url=prefect_url, mlflow_url=mlflow_url)
    dead = worker.process() is None
    reschedule_lost_runs(client, pool, worker_name(home, pool), worker_dead=dead)
    if dead:
        logger.warning("%s does not run and is started. Its log is %s", worker.name, worker.log)
        worker.start()


def _check_serving(home: Path, *, prefect_url: str, mlflow_url: str) -> None:
    """Restart the server of a model if one is served and its server is dead."""
    server = supervised_server(home, prefect_url=prefect_url, mlflow_url=mlflow_url)
    if server is not None:
        restart_if_dead(server)


if __name__ == "__main__":
    log_to_stderr(logging.WARNING)
    supervise(settings.apply())
