"""FSDP: each process holds a shard of every layer, and gathers a whole layer only while it computes with it.

A model is built without memory for its weights and sharded before they are read, so that each process reads only its
part of the files. `grpo.policy.transformers.weight_stream` writes them again. No process ever holds a whole model.

Adapters are added to a model that is sharded already. Each process holds all of them, because they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def shard_model(
    model: PreTrainedModel, *methods: Callable[..., tuple[torch.Tensor, ...]], dtype: torch.dtype = torch.float32
) -> None:
    """Shard a model over all processes in place, and make functions its methods, which run on gathered layers.

    `local_logprobs(model, samples)` becomes `model.local_logprobs(samples)`.

    The backward pass averages gradients over the processes. If the `dtype` is not float32, the shards stay in float32.
    They are rounded before they are gathered, and the gradients are added up in float32 after each backward pass.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    precision = MixedPrecisionPolicy()
    if dtype != torch.float32:
        # inputs are not cast, so that a pass is the one of a model that is held in the dtype
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in list(model.modules()):
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
    for method in methods:
        setattr(model, method.__name__, MethodType(method, model))
        register_fsdp_forward_method(model, method.__name__)


def sharded_class(model_class: type[PreTrainedModel], shard: Callable[[PreTrainedModel], None]) -> Any:
    """Subclass of which `from_pretrained(distributed_config=…)` reads only this process's part of the weights.

    transformers calls `maybe_distribute_model` after it has built the model without memory, and before it reads the
    weights. Its own plan would shard the head by itself, and gather it again for each chunk of logits.
    """

    def maybe_distribute_model(model: PreTrainedModel, *_: object) -> PreTrainedModel:
        del model.config.distributed_config  # it would be written to config.json
        model.tie_weights()  # else FSDP would gather the weight of a tied head a second time
        shard(model)
        return model

    # the class keeps its name, which transformers writes to config.json
    return type(model_class.__name__, (model_class,), {"maybe_distribute_model": staticmethod(maybe_distribute_model)})


def is_sharded(tensor: torch.Tensor) -> bool:
    """Check if this process holds only a shard of a tensor."""
    # isinstance would need DTensor, which takes a second to import
    return hasattr(tensor, "full_tensor")


def is_sharded_model(model: PreTrainedModel) -> bool:
    """Check if this process holds only shards of a model's weights."""
    return any(map(is_sharded, model.parameters()))


def gather_full(tensor: torch.Tensor) -> torch.Tensor:
    """Gather the shards of a tensor. Every process must call it. Other tensors are returned unchanged."""
    return cast("DTensor", tensor).full_tensor() if is_sharded(tensor) else tensor


def reshard(model: PreTrainedModel) -> None:
    """Free what a pass without a gradient leaves gathered: the weights outside the layers."""
    cast("FSDPModule", model).reshard()


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """This process's shard of a tensor. Other tensors are returned unchanged."""
    return cast("DTensor", tensor).to_local() if is_sharded(tensor) else tensor


def parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Rows of a tensor in order, a process's shard at a time. Every process must iterate over all of them.

    Other tensors are one part.
    """
    if not is_sharded(tensor):
        yield tensor.detach()
        return
    from torch import distributed
    from torch.distributed.tensor import Shard

    sharded = cast("DTensor", tensor.detach())
    group, rows = sharded.device_mesh.get_group(), sharded.shape[0]
    assert sharded.placements == (Shard(0),)
    shard = -(-rows // group.size())  # as torch.chunk: later processes may have fewer rows, or none
    own = own_part(sharded).contiguous()
    for rank, first in enumerate(range(0, rows, shard)):
        shape = (min(shard, rows - first), *sharded.shape[1:])
        part = own if rank == group.rank() else torch.empty(shape, dtype=own.dtype, device=own.device)
        distributed.broadcast(part, group=group, group_src=rank)
        yield part


def distribute_like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Move a full tensor to the device of `other`, and shard it in the same way. A shard is returned unchanged."""
    if not is_sharded(other) or is_sharded(tensor):
        return tensor.to(other.device)
    from torch.distributed.tensor import distribute_tensor

    target = cast("DTensor", other)
    return distribute_tensor(tensor.to(other.device), target.device_mesh, target.placements)
