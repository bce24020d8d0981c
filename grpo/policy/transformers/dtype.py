"""Dtype of a policy's weights in forward passes."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from transformers import PreTrainedModel

from grpo.errors import PolicyError
from grpo.policy.transformers.adapters import has_adapters
from grpo.policy.transformers.forward.passes import is_out_of_memory
from grpo.policy.transformers.sharding import is_sharded

Dtype = Literal["float32", "bfloat16"]


def copy_in(model: PreTrainedModel, dtype: Dtype) -> PreTrainedModel:
    """Copy of a model with its weights in a dtype. Buffers, e.g. rotary frequencies, keep their dtype if possible."""
    memo = {
        id(parameter): torch.nn.Parameter(
            parameter.detach().to(getattr(torch, dtype)), requires_grad=parameter.requires_grad
        )
        for parameter in model.parameters()
    }
    held = copy.deepcopy(model, memo)
    cast_mismatched_buffers(held, getattr(torch, dtype))
    return held


@torch.no_grad()
def cast_mismatched_buffers(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Cast the buffers to the dtype of the weights in forward passes if a short forward pass fails without it.

    If the weights are sharded, every process must call it. Raises `PolicyError` if the forward pass fails with the cast
    as well.
    """
    ids = torch.arange(4, device=model.device)[None]
    for attempt in ("weights", "buffers"):
        if attempt == "buffers":
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    buffer.data = buffer.data.to(dtype)
        try:
            model(input_ids=ids, use_cache=False)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            if attempt == "buffers":
                raise PolicyError(
                    f"{type(model).__name__} has no forward pass with weights in {dtype}: {error}. Set "
                    "policy.dtype to float32"
                ) from error
        else:
            return


def cast_frozen(model: PreTrainedModel, dtype: Dtype) -> None:
    """Hold the frozen weights under adapters in a dtype, in place. The adapters keep float32.

    With float32 all weights stay as they were loaded, even quantized ones.
    """
    assert has_adapters(model)
    if dtype == "float32":
        return
    for parameter in model.parameters():
        if parameter.requires_grad:
            continue
        rounded = parameter.to(getattr(torch, dtype))
        if is_sharded(parameter):  # an assignment to its data would leave the shard as it is
            shard = torch.nn.Parameter(rounded, requires_grad=False)
            torch.utils.swap_tensors(parameter, shard)  # type: ignore[no-untyped-call]
        else:
            parameter.data = rounded
