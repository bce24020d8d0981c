"""Retries of a flow's own work between its stages, when it looks into the store and the registry."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from grpo import progress
from grpo.errors import GRPOError
from grpo.storage.error_lines import one_line
from grpo_tasks import stage

P = ParamSpec("P")
R = TypeVar("R")


def patient(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function try again after a fault that a retry can fix, with the same pauses as stages.

    Decorate only functions that can be repeated, because a failed try may have done a part of the work.
    """

    @functools.wraps(function)
    def tried(*args: P.args, **kwargs: P.kwargs) -> R:
        for pause in stage.PAUSES_S:
            try:
                return function(*args, **kwargs)
            except GRPOError:
                raise
            except stage.TRANSIENT as error:
                progress.report(f"{function.__name__.strip('_')} in {pause:g} s again: {one_line(error)}", 0, 1)
                time.sleep(pause)
        return function(*args, **kwargs)

    return tried
