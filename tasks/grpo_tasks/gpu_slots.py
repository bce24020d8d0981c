"""GPU slots: of the stages that work on a device, as many at once as Prefect's limit `gpu` allows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

LIMIT = "gpu"
"""Global concurrency limit, one slot a device; without it stages do not wait."""
_LEASE_S = 60.0
"""After which the slot of a holder that was killed is free again."""


def on_cuda() -> bool:
    """True when models of this process are on a CUDA device."""
    import torch

    return torch.cuda.is_available()


def holds_gpu_slot(function: Callable[P, R]) -> Callable[P, R]:
    """Let the work of a stage wait for a slot and hold it, where it runs on a CUDA device.

    A stage whose settings name `processes` holds one for each of them.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def work(*args: P.args, **kwargs: P.kwargs) -> R:
        if not on_cuda():
            return function(*args, **kwargs)
        from prefect.concurrency.sync import concurrency

        settings = signature.bind_partial(*args, **kwargs).arguments.get("settings")
        with concurrency(LIMIT, occupy=getattr(settings, "processes", 1), lease_duration=_LEASE_S):
            return function(*args, **kwargs)

    return work
