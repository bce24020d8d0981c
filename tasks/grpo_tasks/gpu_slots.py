"""GPU slots: of the stages that work on a device, as many at once as Prefect's limit `gpu` allows."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

LIMIT = "gpu"
"""Global concurrency limit, one slot a device."""
_LEASE_S = 60.0
"""After which the slot of a holder that was killed is free again."""


def on_cuda() -> bool:
    """True when models of this process are on a CUDA device."""
    import torch

    return torch.cuda.is_available()


def create_slots(number: int | None = None) -> None:
    """Set the limit to `number` slots; without a number, create it for the devices of this machine where it is missing.

    A machine without a device counts as one with a single device.
    """
    from prefect import get_client  # a dry run needs neither client nor server
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

    with get_client(sync_client=True) as client:
        if number is not None:
            client.upsert_global_concurrency_limit_by_name(LIMIT, number)
            return
        try:
            client.read_global_concurrency_limit_by_name(LIMIT)
        except ObjectNotFound:
            import torch

            devices = max(1, torch.cuda.device_count())
            with suppress(ObjectAlreadyExists):  # of another stage that starts at this moment
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=devices))
                logger.info("limit %s has %d slots, one for each device of this machine", LIMIT, devices)


def holds_gpu_slot(function: Callable[P, R]) -> Callable[P, R]:
    """Let the work of a stage wait for a slot and hold it, where it runs on a CUDA device.

    A stage whose settings name `processes` holds one for each of them. A server without the limit gets it first, so
    that two runs that start at once on one machine do not share a device.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def work(*args: P.args, **kwargs: P.kwargs) -> R:
        if not on_cuda():
            return function(*args, **kwargs)
        from prefect.concurrency.sync import concurrency

        settings = signature.bind_partial(*args, **kwargs).arguments.get("settings")
        create_slots()
        with concurrency(LIMIT, occupy=getattr(settings, "processes", 1), lease_duration=_LEASE_S):
            return function(*args, **kwargs)

    return work
