"""GPU slots: Prefect's limit `gpu` bounds the number of stages that work on a device at the same time."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from grpo.errors import ConfigError

logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

LIMIT = "gpu"
"""Global concurrency limit, one slot per device."""
_LEASE_S = 60.0
"""Time after which a slot is free again if its holder was killed."""


def on_cuda() -> bool:
    """True if models of this process are on a CUDA device."""
    import torch

    return torch.cuda.is_available()


def create_slots(number: int | None = None) -> None:
    """Set the limit to `number` slots. Without a number, create it for the devices of this machine if it is missing.

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


def _check_slots(processes: int) -> None:
    """Raise `ConfigError` if a stage needs more slots than there are, because Prefect then refuses it for good."""
    from prefect import get_client

    with get_client(sync_client=True) as client:
        slots = client.read_global_concurrency_limit_by_name(LIMIT).limit
    if processes > slots:
        raise ConfigError(
            f"training.processes {processes} needs as many slots of the limit {LIMIT}, and it has {slots}. Call "
            f"`grpo deploy --gpu-slots {processes}` if the machines of the GPU pool have as many devices, or lower it"
        )


def holds_gpu_slot(function: Callable[P, R]) -> Callable[P, R]:
    """Let the work of a stage wait for a slot and hold it, if it runs on a CUDA device.

    If the settings of a stage name `processes`, it holds one slot for each of them. If the server does not have the
    limit yet, it is created first, so that two runs that start at once on one machine do not share a device.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def work(*args: P.args, **kwargs: P.kwargs) -> R:
        if not on_cuda():
            return function(*args, **kwargs)
        from prefect.concurrency.sync import concurrency

        settings = signature.bind_partial(*args, **kwargs).arguments.get("settings")
        processes = getattr(settings, "processes", 1)
        create_slots()
        _check_slots(processes)
        with concurrency(LIMIT, occupy=processes, lease_duration=_LEASE_S):
            return function(*args, **kwargs)

    return work
