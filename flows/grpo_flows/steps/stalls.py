"""Stop of a remote stage that makes no progress, so that its run sends it again.

Heartbeats of a flow run come from a thread of Prefect's, which goes on while the computation is deadlocked or waits for
an answer that never comes. So neither the server nor the sender can tell such a stage from a slow one. The process of
the stage can, because every rollout and update reports its progress (`grpo.progress`).
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run
from prefect.states import Crashed

from grpo import progress

logger = logging.getLogger(__name__)
_LOOK_S = 5.0


@contextmanager
def ended_without_progress(stage: str, limit_s: float) -> Iterator[None]:
    """End this process if the block reports no progress for `limit_s` seconds. Its flow run crashes then.

    The stacks of all threads are written to standard error first. The processes that a stage starts end with it.
    """
    reported, over = time.monotonic(), threading.Event()
    run = flow_run.id

    def note(*_: object) -> None:
        nonlocal reported
        reported = time.monotonic()

    def watch() -> None:
        while not over.wait(min(_LOOK_S, limit_s / 4)):
            if time.monotonic() - reported > limit_s:
                _end(f"stage {stage} made no progress for {limit_s:g} s (compute.gpu_stages.no_progress_s)", run)
                return

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    with progress.observed(note):
        watcher.start()
        try:
            yield
        finally:
            over.set()


def _end(reason: str, run: str | None) -> None:
    try:
        logger.error("%s, so its process is ended", reason)
        faulthandler.dump_traceback()
        if run is not None:
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(UUID(run), Crashed(message=reason))
    except (httpx.HTTPError, PrefectException, ValueError, OSError) as error:  # ValueError: a proxy answers with a page
        logger.warning(
            "the state of flow run %s could not be set, and follows from the end of the process: %s", run, error
        )
    finally:  # whatever has failed, because nothing else ends a stage that hangs
        os._exit(1)  # at once, because Prefect's handler of a signal would replace the message of the state
