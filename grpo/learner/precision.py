"""In what precision a training pass multiplies its matrices."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

Precision = Literal["fp32", "bf16", "fp16"]
_SCALE = 2.0**12
"""A scale that is too large costs the first step a try; it doubles after 2000 steps that went well."""
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Passes inside it multiply in this precision; weights and reductions stay in float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_TYPES[precision])


def loss_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Keeps small gradients of fp16 from rounding to 0; with the other precisions it does nothing."""
    return torch.amp.GradScaler(device.type, init_scale=_SCALE, enabled=precision == "fp16")
