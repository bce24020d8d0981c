"""Retries of stages and of a flow's own work: which faults are tried again, and after which pauses."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from grpo import progress
from grpo.errors import GRPOError
from grpo.storage.error_lines import one_line

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State

P = ParamSpec("P")
R = TypeVar("R")

TRANSIENT = (ConnectionError, TimeoutError, BrokenExecutor)
"""Faults that a retry can fix: a dropped connection, a timeout, a worker that died."""
PAUSES_S = (1.0, 10.0, 60.0, 120.0)
"""Pauses before a stage is tried again. An object store or a database that is restarted is away for minutes."""


def is_transient(task: Task[Any, Any], task_run: Any, state: State[Any]) -> bool:
    """Retry only faults that a second try can fix. A `GRPOError` fails at once."""
    try:
        state.result()
    except GRPOError:
        return False
    except TRANSIENT as error:
        if (tried := task_run.run_count) <= len(PAUSES_S):
            progress.report(f"{task.name} is tried again in {PAUSES_S[tried - 1]:g} s: {one_line(error)}", 0, 1)
        return True
    except BaseException:
        return False
    return False


def patient(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of a flow, which looks into the store or the registry between stages, be retried as stages are.

    Decorate only functions that can be repeated, because a failed try may have done a part of the work.
    """

    @functools.wraps(function)
    def tried(*args: P.args, **kwargs: P.kwargs) -> R:
        for pause in PAUSES_S:
            try:
                return function(*args, **kwargs)
            except GRPOError:
                raise
            except TRANSIENT as error:
                progress.report(
                    f"{function.__name__.strip('_')} is tried again in {pause:g} s: {one_line(error)}", 0, 1
                )
                time.sleep(pause)
        return function(*args, **kwargs)

    return tried
