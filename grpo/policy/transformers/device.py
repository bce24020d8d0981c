"""Device, dtype and attention implementation of a model in this process."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grpo.errors import CapacityError
from grpo.policy.transformers.dtype import cast_mismatched_buffers
from grpo.policy.transformers.model import TransformersPolicy

logger = logging.getLogger(__name__)

FLASH = "flash_attention_2"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once; its other workspaces race


@contextmanager
def reproducible_kernels() -> Iterator[None]:
    """Compute with deterministic kernels on a CUDA device while the block runs. On a CPU they always are.

    By default some of PyTorch's CUDA kernels add in the order in which their threads end, so that the same update gives
    different weights each time. But a resumed run must end with the same policy as an undisturbed run. PyTorch raises
    `RuntimeError` if an operation has no deterministic kernel.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or torch.cuda.is_available())
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def move_to_device(policy: TransformersPolicy, *, dtype: str, device: str, attention: str) -> TransformersPolicy:
    """Move the policy to a device, and its weights to a dtype. A new dtype gives it a new hash.

    Buffers, e.g. rotary frequencies, keep their dtype if the model can compute with it.

    Attention is always PyTorch's sdpa over the sampler's slots. If `attention` asks for another implementation, a
    warning gives the reason. Raises `CapacityError` if this machine has no such device.
    """
    if attention == FLASH:
        missing = importlib.util.find_spec("flash_attn") is None
        logger.warning(
            "attn_implementation %s: sdpa is taken, because %s",
            FLASH,
            "package flash_attn is not installed" if missing else "its kernels cannot read the sampler's slots",
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise CapacityError(
            "device_map cuda cannot be used, because this machine has no CUDA device. Set device_map to auto or cpu"
        )
    model = policy.model
    target = model.device if device == "auto" else torch.device(device)
    if model.device.type == target.type and model.dtype == getattr(torch, dtype):
        return policy
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    model.to(target)
    cast_mismatched_buffers(model, getattr(torch, dtype))
    return TransformersPolicy(model, policy.tokenizer)
