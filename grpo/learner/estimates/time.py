"""Time estimate of a training from its token counts and from a product of matrices on this machine.

It tells minutes from hours before a first run. It does not count prompts, because their tokens are read only once per
group, nor the waiting times of environments and judges, nor other programs on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

_DEVICE = Path("/dev/nvidiactl")
"""File that exists if NVIDIA's driver is installed. Only then PyTorch is asked, because its import takes seconds."""
_ROWS = 512  # of the measured matrices
_SHARE = 0.5
"""Share of the speed of large products that a model reaches. 278 tokens per second with 135 M parameters are
75 GFLOP/s, on two cores that multiply large matrices at 150 GFLOP/s."""
_TOKEN_S = 2e-4
"""Seconds per generated token in addition to arithmetic. The shipped model of 1.3 M parameters generates 4,715 tokens
per second."""
_TRAINED_TOKEN_S = 2e-5
_STAGE_S = 0.5
"""Seconds of a stage in addition to its work: files, hashes, its record."""


def measured_flops() -> float:
    """Floating-point operations per second of a product of float32 matrices, on the device of a policy."""
    product = _product()
    fastest = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        product()
        fastest = min(fastest, time.perf_counter() - started)
    return 2 * _ROWS**3 / fastest


def _product() -> Callable[[], float]:
    """Function that multiplies two matrices, and returns an element so that it waits for the result."""
    if _DEVICE.exists():
        import torch

        if torch.cuda.is_available():
            on_device = torch.ones(_ROWS, _ROWS, device="cuda")
            return lambda: float((on_device @ on_device)[0, 0])
    matrix = np.ones((_ROWS, _ROWS), dtype=np.float32)
    return lambda: float((matrix @ matrix)[0, 0])


def estimate_seconds(
    *, parameters: int, generated: float, trained: float, stages: int, frozen_passes: int, flops: float
) -> float:
    """Seconds of a run.

        operations per parameter: generated token 2, trained token 6, and 2 for each frozen model that reads it

    Args:
        parameters: Number of parameters.
        generated: Generated tokens of all episodes.
        trained: Tokens of the updates, times their epochs.
        stages: Stages of the run.
        frozen_passes: Number of frozen models that read the tokens of an update: the reference of a KL penalty, and the
            teacher of a distillation, which counts as large as the policy.
        flops: Operations per second, see `measured_flops`.

    """
    operations = parameters * (2 * generated + (6 + 2 * frozen_passes) * trained)
    return operations / (_SHARE * flops) + _TOKEN_S * generated + _TRAINED_TOKEN_S * trained + _STAGE_S * stages
