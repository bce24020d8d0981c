"""Device, dtype and attention implementation of a model in this process."""

from __future__ import annotations

import importlib.util
import logging

import torch

from grpo.errors import CapacityError
from grpo.policy.transformers.dtype import cast_mismatched_buffers
from grpo.policy.transformers.model import TransformersPolicy

logger = logging.getLogger(__name__)

FLASH = "flash_attention_2"


def move_to_device(policy: TransformersPolicy, *, dtype: str, device: str, attention: str) -> TransformersPolicy:
    """Move the policy to a device, and its weights to a dtype; a new dtype gives it a new hash.

    Buffers, such as rotary frequencies, keep their dtype where the model computes with it.

    Attention is always PyTorch's sdpa over the sampler's slots; a fallback is logged with its reason. Raises
    `CapacityError` for a device that this machine lacks.
    """
    if attention == FLASH:
        missing = importlib.util.find_spec("flash_attn") is None
        logger.warning(
            "attn_implementation %s: sdpa is taken, because %s",
            FLASH,
            "package flash_attn is not installed" if missing else "its kernels cannot read the sampler's slots",
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise CapacityError("device_map cuda: this machine has no CUDA device; set device_map to auto or cpu")
    model = policy.model
    target = model.device if device == "auto" else torch.device(device)
    if model.device.type == target.type and model.dtype == getattr(torch, dtype):
        return policy
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    model.to(target)
    cast_mismatched_buffers(model)
    return TransformersPolicy(model, policy.tokenizer)
