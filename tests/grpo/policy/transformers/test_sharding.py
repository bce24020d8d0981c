"""FSDP with one process over gloo on the CPU: the same calls that many processes make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed
from transformers import PreTrainedModel

from grpo.policy.transformers.model import load
from grpo.policy.transformers.sharding import distribute_like, gather_full, is_sharded, shard_model

IDS = torch.arange(5, 25)[None]


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of processes that this one is alone in."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _mean_logits(model: PreTrainedModel, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (model(input_ids=ids).logits.mean(dim=1),)


@pytest.mark.usefixtures("alone")
def test_a_sharded_model_computes_the_same(tiny_folder: Path):
    """`local_logprobs` calls the method that was given, with the model: the same logits and gradients, in shares."""
    plain, shared = load(tiny_folder).model, load(tiny_folder).model
    shard_model(shared, _mean_logits)
    (expected,) = _mean_logits(plain, IDS)
    (logits,) = shared.local_logprobs(IDS)
    assert torch.equal(logits, expected)
    expected.sum().backward()
    logits.sum().backward()
    gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in shared.named_parameters():
        assert is_sharded(parameter)
        assert is_sharded(parameter.grad)
        assert torch.allclose(gather_full(parameter.grad), gradients[name], atol=1e-6)


@pytest.mark.usefixtures("alone")
def test_each_layer_is_gathered_for_itself(tiny_folder: Path):
    """The layers and what is around them, so that at most one layer is in memory whole."""
    from torch.distributed.fsdp import FSDPModule

    model = load(tiny_folder).model
    shard_model(model, _mean_logits)
    units = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    assert units == ["", "model.layers.0", "model.layers.1"]


@pytest.mark.usefixtures("alone")
def test_a_shard_is_gathered_and_distributed_again(tiny_folder: Path):
    """Gathered, it is the tensor of the unsharded model; a plain tensor is unchanged."""
    plain, shared = load(tiny_folder).model, load(tiny_folder).model
    shard_model(shared, _mean_logits)
    weight, share = plain.model.norm.weight, shared.model.norm.weight
    assert (is_sharded(weight), is_sharded(share)) == (False, True)
    assert gather_full(weight) is weight
    assert not is_sharded(gather_full(share))
    assert torch.equal(gather_full(share), weight)
    again = distribute_like(torch.arange(32.0), share)
    assert (again.device_mesh, again.placements) == (share.device_mesh, share.placements)
    assert torch.equal(gather_full(again), torch.arange(32.0))
    assert not is_sharded(distribute_like(torch.arange(32.0), weight))


@pytest.mark.usefixtures("alone")
def test_the_hash_of_a_sharded_model_is_that_of_its_whole_weights(tiny_folder: Path, tmp_path: Path):
    """Saved by the process that writes, it is the policy that it was; one that does not write leaves no file."""
    from grpo.policy.transformers.model import weights_hash

    policy = load(tiny_folder)
    shard_model(policy.model, _mean_logits)
    assert weights_hash(policy.model) == policy.hash
    policy.save(tmp_path / "none", write=False)
    assert not (tmp_path / "none").exists()
    policy.save(tmp_path / "copy")
    assert load(tmp_path / "copy").hash == policy.hash


def test_a_tensor_goes_to_the_device_of_the_other():
    """The meta device stands for an accelerator."""
    assert distribute_like(torch.ones(2), torch.empty(2, device="meta")).device.type == "meta"
