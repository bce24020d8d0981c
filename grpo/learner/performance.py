"""Mixed precision, activation checkpointing and model FLOPs utilization of the training passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo.errors import ConfigError
from grpo.policy.transformers.dropout import without_dropout

Precision = Literal["fp32", "bf16", "fp16"]
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "A10": 125e12}
"""Dense bf16 and fp16 operations per second from the vendor's data sheet (SXM). Longer names come first."""
_INITIAL_SCALE = 2.0**12
"""Initial fp16 loss scale. It doubles after 2000 good steps. If it is too large, the first step needs a retry."""
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Autocast matrix products to this precision. Weights and reductions stay in float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_TYPES[precision])


def loss_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Loss scaler that keeps small fp16 gradients from rounding to 0. It is disabled for other precisions."""
    return torch.amp.GradScaler(device.type, init_scale=_INITIAL_SCALE, enabled=precision == "fp16")


@contextmanager
def activation_checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Keep only the input of each layer in forward passes, and recompute the rest in the backward pass.

    transformers does so only in training mode, in which dropout would be on. So only the layers themselves are set to
    training mode, not the modules inside them, and dropout rates are 0 inside the context. Raises `ConfigError` if the
    model has no layers that can be recomputed.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers or not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"training.gradient_checkpointing: the layers of {type(model).__name__} cannot be recomputed. Turn it off, "
            "and lower training.microbatch_tokens to save memory"
        )
    model.activation_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True
    try:
        with without_dropout(model):
            yield
    finally:
        model.activation_checkpointing_disable()
        for layer in layers:
            layer.training = False


def model_flops_utilization(model: PreTrainedModel, *, tokens_per_s: float, precision: Precision) -> float | None:
    """Share of the accelerator's peak that forward and backward passes used, at 6 operations per weight and token.

    `tokens_per_s` counts tokens that went through the model on one accelerator, with shared prefixes once. Attention is
    not counted. Frozen weights under adapters count as if they were trained. The result is None if the peak is unknown:
    on the CPU, in fp32, or on an accelerator that is not in `PEAK_FLOPS`.
    """
    if model.device.type != "cuda" or precision == "fp32":
        return None
    name = torch.cuda.get_device_name(model.device)
    peak = next((flops for key, flops in PEAK_FLOPS.items() if key in name), None)
    if peak is None:
        return None
    weights = sum(parameter.numel() for parameter in model.parameters())
    return 6 * weights * tokens_per_s / peak
