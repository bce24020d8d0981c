"""What keeps a stack going: servers and workers that died are started again, and so are the runs that they took along.

It holds nothing that is not in the databases: killed, it is missed only until the next `grpo up`.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import httpx

from flows import settings
from flows.stack.machine import worker_name, worker_service
from flows.stack.pools import POOLS
from flows.stack.servers import mlflow_server, mlflow_service, prefect_server, prefect_service
from flows.stack.service import Service
from grpo.errors import GRPOError

logger = logging.getLogger("flows.stack.keeper")
_PAUSE_S = 2.0


def keep(home: Path) -> None:
    """Look after the stack of this home until this process is ended."""
    own = [prefect_service(home)] if "PREFECT_API_URL" not in os.environ else []
    own += [mlflow_service(home)] if not os.environ["MLFLOW_TRACKING_URI"].startswith("http") else []
    with prefect_server(home) as prefect_url, mlflow_server(home) as mlflow_url:
        while True:
            try:
                _look(own, home, prefect_url, mlflow_url)
            except (GRPOError, TimeoutError, httpx.HTTPError) as error:
                logger.error("%s: %s", type(error).__name__, error)
            time.sleep(_PAUSE_S)


def _look(servers: list[Service], home: Path, prefect_url: str, mlflow_url: str) -> None:
    """One round: what does not live is started; then runs that were lost are put back."""
    from flows.stack.recovery import put_back  # Prefect is imported when its address is known

    for server in servers:
        if server.process() is None:
            logger.warning("%s is started again; its log is %s", server.name, server.log)
            server.start()
            server.wait()
    for pool in POOLS:
        worker = worker_service(home, pool, prefect_url=prefect_url, mlflow_url=mlflow_url)
        gone = worker.process() is None
        put_back(pool, worker_name(pool), gone=gone)
        if gone:
            logger.warning("%s is started; its log is %s", worker.name, worker.log)
            worker.start()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    keep(settings.apply())
