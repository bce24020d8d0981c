"""FSDP: each process holds its share of every layer, and gathers a layer while it computes with it."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, cast

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def shard_model(model: PreTrainedModel, method: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    """Share a model out over all processes, in place; `model.local_logprobs(...)` then is `method(model, ...)`, gathered.

    Gradients are averaged over the processes when a pass has gone back.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for module in list(model.modules()):
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module)
    fully_shard(model)
    model.local_logprobs = MethodType(method, model)
    register_fsdp_forward_method(model, "local_logprobs")


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether this process holds only its share of a tensor (the class to ask for takes a second to import)."""
    return hasattr(tensor, "full_tensor")


def gather_full(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or all processes' shares of it put together: each process has to ask."""
    return cast("DTensor", tensor).full_tensor() if is_sharded(tensor) else tensor


def distribute_like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A whole tensor on the device of `other`, shared out over the processes as that one is."""
    if not is_sharded(other):
        return tensor.to(other.device)
    from torch.distributed.tensor import distribute_tensor

    shares = cast("DTensor", other)
    return distribute_tensor(tensor.to(other.device), shares.device_mesh, shares.placements)
