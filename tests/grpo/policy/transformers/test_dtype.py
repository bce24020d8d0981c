from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grpo.policy.transformers.adapters import merge_adapters
from grpo.policy.transformers.dtype import copy_in
from grpo.policy.transformers.model import load
from grpo.policy.transformers.model_cache import ModelCache
from tests.models.families import tiny_model
from tests.tasks.adapted import adapted_policy


def test_a_copy_holds_its_weights_in_the_dtype_and_its_buffers_in_theirs(tiny_folder: Path):
    """Rotary frequencies in bfloat16 would turn positions wrong; the original stays float32."""
    model = load(tiny_folder).model
    held = copy_in(model, "bfloat16")
    assert {parameter.dtype for parameter in held.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in held.buffers()} == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    for one, other in zip(held.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other.to(torch.bfloat16))


def test_tied_weights_stay_tied():
    """Gemma's head is its embedding."""
    held = copy_in(tiny_model("gemma2"), "bfloat16")
    assert held.get_output_embeddings().weight is held.get_input_embeddings().weight


def test_a_policy_is_copied_once_and_keeps_its_version(tiny_folder: Path):
    """The hash is that of the float32 weights, also after an update changed it."""
    policy = load(tiny_folder)
    held = policy.in_dtype("bfloat16")
    assert (held.hash, held.model.dtype) == (policy.hash, torch.bfloat16)
    assert policy.in_dtype("bfloat16") is held
    assert policy.in_dtype("float32") is policy
    policy.hash = "0" * 16
    assert policy.in_dtype("bfloat16").hash == "0" * 16


def test_a_frozen_base_is_held_in_the_dtype_and_adapters_in_float32(tiny_folder: Path):
    """Trained weights keep float32."""
    model = adapted_policy(tiny_folder, frozen="bfloat16").model
    dtypes = {parameter.requires_grad: parameter.dtype for parameter in model.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}


def test_adapters_of_a_base_in_bfloat16_are_loaded_by_their_hash(tiny_folder: Path, tmp_path: Path):
    """The cache of another process verifies it."""
    policy = adapted_policy(tiny_folder, frozen="bfloat16")
    policy.save(tmp_path)
    loaded = ModelCache().get(policy.hash, tmp_path, base=tiny_folder, frozen="bfloat16")
    ids = torch.arange(5, 12)[None]
    assert torch.equal(loaded.model(input_ids=ids).logits, policy.model(input_ids=ids).logits)


def test_adapters_are_merged_in_float32(tiny_folder: Path):
    """W + s·B·A of the rounded base, to 1e-7: a sum in bfloat16 would be off by 4e-3."""
    model = adapted_policy(tiny_folder, frozen="bfloat16").model
    layer = model.model.layers[0].self_attn.q_proj
    scale = layer.scaling["default"]
    expected = layer.weight.float() + scale * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    merged = merge_adapters(model).model.layers[0].self_attn.q_proj.weight
    assert merged.dtype == torch.float32
    assert merged.tolist() == [pytest.approx(row, abs=1e-6) for row in expected.tolist()]
