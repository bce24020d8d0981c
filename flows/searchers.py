"""Processes that run trials beside each other, and end with the flow that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import ProcessPoolTaskRunner
from prefect.transactions import BaseTransaction

from grpo.config.tuning import TuneConfig
from grpo.storage.locks import file_lock
from grpo.tuning.storage import open_storage
from grpo.tuning.study import open_study
from grpo.tuning.study import search as search_study


@task(name="search", cache_policy=NO_CACHE, persist_result=False)
def search(plan: TuneConfig, study: str, url: str, start: str, lock: Path) -> None:
    """Run trials of a study, one after the other, until it has as many as are wanted."""
    from flows.trial import trial  # a task's own code travels to its process, what it imports there does not

    if plan.parallel > 1:
        import torch

        torch.set_num_threads(max(1, (os.cpu_count() or 1) // plan.parallel))
    storage = open_storage(url, heartbeat_s=plan.heartbeat_s)
    with file_lock(lock):
        opened = open_study(plan, plan.space, plan.base, name=study, storage=storage)
    with _outside_of_transactions():
        search_study(
            opened,
            plan,
            plan.space,
            lambda number, values: trial(plan, number, values, start),
            storage=storage,
            turn=file_lock(lock),
        )


@contextmanager
def _outside_of_transactions() -> Iterator[None]:
    """Let stages enter the cache as they end.

    A task that runs within another one is part of its transaction: the stages of all trials would be written, and
    their locks be freed, when the last trial ends, and a killed search would have nothing in the cache.
    """
    own = BaseTransaction.__var__.set(None)
    try:
        yield
    finally:
        BaseTransaction.__var__.reset(own)


@contextmanager
def searchers(plan: TuneConfig, study: str, url: str, start: str, lock: Path) -> Iterator[list[PrefectFuture[None]]]:
    """Search in `parallel` processes while the block runs, each in a pool of its own: if one dies, the others go on.

    If the block is left by an exception, or this process dies, they end at once; their trials are tried again by
    whoever goes on with the study.
    """
    inputs = {"plan": plan, "study": study, "url": url, "start": start, "lock": lock}
    life, ours = multiprocessing.Pipe(duplex=False)
    with life, ours, ExitStack() as stack:
        pools = [
            ProcessPoolTaskRunner(max_workers=1, initializer=_end_with_parent, initargs=(life,))
            for _ in range(plan.parallel)
        ]
        try:
            yield [stack.enter_context(pool).submit(search, inputs) for pool in pools]
        except BaseException:
            ours.close()
            raise


def _end_with_parent(life: Connection) -> None:
    """End this process when the other end of the pipe is closed, by its holder or by its holder's death.

    An orphan would compute for nobody.
    """

    def watch() -> None:
        life.poll(None)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
