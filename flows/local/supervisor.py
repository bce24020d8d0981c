"""What keeps a stack going: servers and workers that died are started again, and so are the runs that they took along.

It holds nothing that is not in the databases: killed, it is missed only until the next `grpo up`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import httpx

from flows.local import settings
from flows.local.deployments import POOLS
from flows.local.servers import mlflow_server, mlflow_service, prefect_server, prefect_service
from flows.local.service import Service
from flows.local.stack import worker_name, worker_service
from grpo.errors import GRPOError

logger = logging.getLogger("flows.local.supervisor")
_PAUSE_S = 2.0
_EXPECTED = (GRPOError, TimeoutError, httpx.HTTPError)
"""What is said in one line; anything else with its traceback."""


def supervise(home: Path) -> None:
    """Look after the stack of this home until this process is ended."""
    looks: dict[str, Callable[[], None]] = {}
    if "PREFECT_API_URL" not in os.environ:
        looks["prefect"] = partial(restart_if_dead, prefect_service(home), patient=True)  # the pools need it
    if not os.environ["MLFLOW_TRACKING_URI"].startswith("http"):
        looks["mlflow"] = partial(restart_if_dead, mlflow_service(home))
    with prefect_server(home) as prefect_url, mlflow_server(home) as mlflow_url:
        for pool in POOLS:
            looks[pool] = partial(_keep_pool, home, pool, prefect_url=prefect_url, mlflow_url=mlflow_url)
        while True:
            supervise_once(looks)
            time.sleep(_PAUSE_S)


def supervise_once(looks: Mapping[str, Callable[[], None]]) -> None:
    """One round: whatever goes wrong with one is said, and the others are looked after all the same."""
    for name, look in looks.items():
        try:
            look()
        except Exception as error:
            logger.error("%s: %s: %s", name, type(error).__name__, error, exc_info=not isinstance(error, _EXPECTED))


def restart_if_dead(server: Service, *, patient: bool = False) -> None:
    """Start a server that does not live; `patient`: wait until it answers."""
    if server.process() is None:
        logger.warning("%s is started again; its log is %s", server.name, server.log)
        server.start()
        if patient:
            server.wait()


def _keep_pool(home: Path, pool: str, *, prefect_url: str, mlflow_url: str) -> None:
    """Put back the runs that the worker of a pool has lost; then start it, if it does not live."""
    from flows.local.recovery import put_back  # Prefect is imported when its address is known

    worker = worker_service(home, pool, prefect_url=prefect_url, mlflow_url=mlflow_url)
    gone = worker.process() is None
    put_back(pool, worker_name(home, pool), gone=gone)
    if gone:
        logger.warning("%s is started; its log is %s", worker.name, worker.log)
        worker.start()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    supervise(settings.apply())
