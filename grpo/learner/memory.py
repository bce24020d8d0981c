"""What a training pass does where memory is scarce."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


@contextmanager
def recomputed_activations(model: PreTrainedModel) -> Iterator[None]:
    """Inside it a pass keeps only what goes into each layer, and computes the rest again on the way back.

    transformers does so in training mode alone, in which dropout would be on: only the layers themselves get that mode,
    nothing inside them.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    model.activation_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        model.activation_checkpointing_disable()
        for layer in layers:
            layer.training = False


def ran_out(error: RuntimeError) -> bool:
    """Whether memory was the reason: PyTorch has a class for it on accelerators, on the CPU only a message."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
