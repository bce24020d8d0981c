"""FSDP with one process over gloo on the CPU: the same calls that many processes make."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from grpo.config.training import LoraSettings
from grpo.policy.transformers.adapters import add_adapters, without_adapters
from grpo.policy.transformers.dtype import Dtype, cast_mismatched_buffers
from grpo.policy.transformers.exactness import PathCheck
from grpo.policy.transformers.model import TransformersPolicy, load, load_sharded, weights_hash
from grpo.policy.transformers.sharding import distribute_like, gather_full, is_sharded, reshard, shard_model
from grpo.policy.transformers.weight_stream import has_layout_of

IDS = torch.arange(5, 25)[None]


def _mean_logits(model: PreTrainedModel, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (model(input_ids=ids).logits.mean(dim=1),)


@pytest.mark.usefixtures("alone")
def test_a_sharded_model_computes_the_same(tiny_folder: Path):
    """The method of the model calls the function that was given, so logits and gradients are the same, in shares."""
    plain, shared = load(tiny_folder).model, load(tiny_folder).model
    shard_model(shared, _mean_logits)
    (expected,) = _mean_logits(plain, IDS)
    (logits,) = shared._mean_logits(IDS)
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


def _load_sharded(folder: Path, path_check: PathCheck) -> TransformersPolicy:
    return load_sharded(folder, path_check=path_check, shard=lambda model: shard_model(model, _mean_logits))


@pytest.mark.usefixtures("alone")
def test_a_model_is_sharded_before_its_weights_are_read(tiny_folder: Path):
    """When it is sharded it has no memory for weights; when it is loaded it is the policy of the folder, on its path.

    A sharded weight that is tied to another one is still one tensor.
    """
    whole = load(tiny_folder)
    devices: set[str] = set()

    def shard(model: PreTrainedModel) -> None:
        devices.update(parameter.device.type for parameter in model.parameters())
        shard_model(model, _mean_logits)

    policy = load_sharded(tiny_folder, path_check=whole.path_check, shard=shard)
    assert devices == {"meta"}
    assert all(map(is_sharded, policy.model.parameters()))
    assert (policy.hash, policy.path_check) == (whole.hash, whole.path_check)
    assert policy.model.forward_path == whole.model.forward_path
    assert len(list(policy.model.parameters())) == len(list(whole.model.parameters()))
    assert torch.equal(policy.model._mean_logits(IDS)[0], _mean_logits(whole.model, IDS)[0])


@pytest.mark.usefixtures("alone")
def test_sharded_weights_are_written_as_whole_ones(tiny_folder: Path, tmp_path: Path):
    """Byte for byte the folder that one process writes; a process that does not write leaves no file."""
    whole = load(tiny_folder)
    whole.save(tmp_path / "source")
    policy = _load_sharded(tmp_path / "source", whole.path_check)
    with torch.no_grad():
        for model in (whole.model, policy.model):
            for parameter in model.parameters():
                parameter.mul_(2)
    whole.save(tmp_path / "whole")
    for name in ("sharded", "silent"):
        (tmp_path / name).mkdir()
        policy.save_sharded(tmp_path / name, source=tmp_path / "source", write=name == "sharded")
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "sharded").iterdir()} == expected
    assert list((tmp_path / "silent").iterdir()) == []


@pytest.mark.usefixtures("alone")
def test_weights_of_another_layout_are_gathered(tiny_folder: Path, tmp_path: Path):
    """A source whose file lacks a weight: the policy is written all the same, with the names of its own."""
    whole = load(tiny_folder)
    policy = _load_sharded(tiny_folder, whole.path_check)
    shutil.copytree(tiny_folder, tmp_path / "source")
    weights = load_file(tmp_path / "source" / "model.safetensors")
    assert has_layout_of(policy.model, tmp_path / "source")
    save_file({"renamed": weights.pop("model.norm.weight"), **weights}, tmp_path / "source" / "model.safetensors")
    assert not has_layout_of(policy.model, tmp_path / "source")
    policy.save_sharded(tmp_path / "copy", source=tmp_path / "source", write=True)
    assert load(tmp_path / "copy").hash == whole.hash


@pytest.mark.usefixtures("alone")
def test_adapters_are_added_to_a_sharded_base(tiny_folder: Path, tmp_path: Path):
    """They are whole and those of a process with whole weights, byte for byte on the disk. The base is not written."""
    whole = load(tiny_folder)
    sharded = _load_sharded(tiny_folder, whole.path_check)
    for name, policy in {"whole": whole, "sharded": sharded}.items():
        add_adapters(policy.model, LoraSettings(r=2), seed=3)
        policy.save(tmp_path / name)
    assert {is_sharded(parameter) for parameter in sharded.model.parameters() if parameter.requires_grad} == {False}
    assert weights_hash(sharded.model) == weights_hash(whole.model)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert "adapter_model.safetensors" in expected
    assert {path.name: path.read_bytes() for path in (tmp_path / "sharded").iterdir()} == expected


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("frozen", ["float32", "bfloat16"])
def test_adapters_are_loaded_onto_a_sharded_base(tiny_folder: Path, tmp_path: Path, frozen: Dtype):
    """Hash, logits and gradients of the adapters are those of a process that holds the base whole.

    Without the adapters it is the base.
    """
    adapted = load(tiny_folder)
    add_adapters(adapted.model, LoraSettings(r=2), seed=3)
    with torch.no_grad():
        for parameter in adapted.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    adapted.save(tmp_path)
    whole = load(tmp_path, base=tiny_folder, frozen=frozen)
    sharded = load_sharded(
        tmp_path,
        path_check=whole.path_check,
        shard=lambda model: shard_model(model, _mean_logits),
        base=tiny_folder,
        frozen=frozen,
    )
    assert sharded.hash == whole.hash
    logits, expected = sharded.model._mean_logits(IDS)[0], _mean_logits(whole.model, IDS)[0]
    assert torch.equal(logits, expected)
    logits.sum().backward()
    expected.sum().backward()
    gradients = {name: parameter.grad for name, parameter in whole.model.named_parameters()}
    for name, parameter in sharded.model.named_parameters():
        assert is_sharded(parameter) != parameter.requires_grad
        if parameter.requires_grad:
            assert torch.allclose(parameter.grad, gradients[name], atol=1e-6)
    with torch.no_grad(), without_adapters(sharded.model), without_adapters(whole.model):
        base = sharded.model._mean_logits(IDS)[0]
        assert torch.equal(base, _mean_logits(whole.model, IDS)[0])
    assert not torch.equal(base, logits)


@pytest.mark.usefixtures("alone")
def test_shards_of_float32_compute_as_weights_in_bfloat16(tiny_folder: Path):
    """Logits are those of a model that is held in bfloat16. Gradients too, in shards of float32; so are the weights."""
    policy = load(tiny_folder)
    held = policy.in_dtype("bfloat16").model
    shared = load_sharded(
        tiny_folder,
        path_check=policy.path_check,
        shard=lambda model: shard_model(model, _mean_logits, dtype=torch.bfloat16),
    )
    assert shared.in_dtype("bfloat16") is shared
    cast_mismatched_buffers(shared.model, torch.bfloat16)
    reshard(shared.model)
    logits, expected = shared.model._mean_logits(IDS)[0], _mean_logits(held, IDS)[0]
    assert logits.dtype == torch.bfloat16
    assert torch.equal(logits, expected)
    logits.float().sum().backward()
    expected.float().sum().backward()
    gradients = {name: parameter.grad for name, parameter in held.named_parameters()}
    for name, parameter in shared.model.named_parameters():
        assert (is_sharded(parameter), parameter.dtype, parameter.grad.dtype) == (True, torch.float32, torch.float32)
        assert torch.equal(gather_full(parameter.grad), gradients[name].float())
    assert weights_hash(shared.model) == policy.hash


def test_a_tensor_goes_to_the_device_of_the_other():
    """The meta device stands for an accelerator."""
    assert distribute_like(torch.ones(2), torch.empty(2, device="meta")).device.type == "meta"
