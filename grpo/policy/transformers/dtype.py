"""Dtype in which a policy's weights are held for forward passes."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from transformers import PreTrainedModel

from grpo.policy.transformers.adapters import has_adapters

Dtype = Literal["float32", "bfloat16"]


def copy_in(model: PreTrainedModel, dtype: Dtype) -> PreTrainedModel:
    """Copy of a model with its weights in a dtype; buffers, such as rotary frequencies, keep theirs."""
    memo = {
        id(parameter): torch.nn.Parameter(
            parameter.detach().to(getattr(torch, dtype)), requires_grad=parameter.requires_grad
        )
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, memo)


def cast_frozen(model: PreTrainedModel, dtype: Dtype) -> None:
    """Hold the frozen weights under adapters in a dtype, in place; the adapters keep float32.

    With float32 they stay as they were loaded, quantized ones too.
    """
    assert has_adapters(model)
    if dtype == "float32":
        return
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(getattr(torch, dtype))
