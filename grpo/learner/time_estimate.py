"""Time estimate of a training from its token counts and from a product of matrices on this machine.

It tells minutes from hours before a first run. Not counted are prompts, whose tokens are
read once for a group, what an environment or a judge waits for, and other programs on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

_DEVICE = Path("/dev/nvidiactl")
"""There is one where NVIDIA's driver is; PyTorch, whose import takes seconds, is asked only then."""
_ROWS = 512  # of the measured matrices
_SHARE = 0.5
"""Share of the speed of large products that a model reaches: 278 tokens a second of 135 M parameters are 75 GFLOP/s on
two cores that multiply large matrices at 150."""
_TOKEN_S = 2e-4
"""Seconds of a generated token besides arithmetic: the embedded model of 1.3 M parameters generates 4,715 a second."""
_TRAINED_TOKEN_S = 2e-5
_STAGE_S = 0.5
"""Seconds of a stage besides its work: files, hashes, its record."""


def measured_flops() -> float:
    """Floating-point operations a second of a product of float32 matrices, on the device that a policy is put on."""
    product = _product()
    fastest = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        product()
        fastest = min(fastest, time.perf_counter() - started)
    return 2 * _ROWS**3 / fastest


def _product() -> Callable[[], float]:
    """One product of two matrices; returns a number of it, for which it waits."""
    if _DEVICE.exists():
        import torch

        if torch.cuda.is_available():
            on_device = torch.ones(_ROWS, _ROWS, device="cuda")
            return lambda: float((on_device @ on_device)[0, 0])
    matrix = np.ones((_ROWS, _ROWS), dtype=np.float32)
    return lambda: float((matrix @ matrix)[0, 0])


def estimate_seconds(
    *, parameters: int, generated: float, trained: float, stages: int, reference: bool, flops: float
) -> float:
    """Seconds of a run.

        generated token: 2 × parameters operations; trained token: 6, and 2 of the reference policy

    Args:
        parameters: Number of parameters.
        generated: Generated tokens of all episodes.
        trained: Tokens of the updates, times their epochs.
        stages: Stages of the run.
        reference: Whether the update measures the KL to a reference policy.
        flops: Operations a second, see `measured_flops`.

    """
    operations = parameters * (2 * generated + (8 if reference else 6) * trained)
    return operations / (_SHARE * flops) + _TOKEN_S * generated + _TRAINED_TOKEN_S * trained + _STAGE_S * stages
