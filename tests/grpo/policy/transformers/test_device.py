from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import pytest
import torch

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.errors import CapacityError
from grpo.policy.transformers.device import move_to_device
from grpo.policy.transformers.dtype import copy_in
from grpo.policy.transformers.model import TransformersPolicy, load, weights_hash
from tests.grpo.agents.fixtures import run


def _agent(folder: Path, **settings: object) -> MultiTurnAgent:
    agent = MultiTurnAgent.from_model(str(folder), max_new_tokens=4, **settings)
    run(agent.initialize())
    return agent


def test_a_model_computes_in_the_configured_dtype(tiny_folder: Path):
    """In bfloat16 it is another policy version, and it generates."""
    single, half = _agent(tiny_folder), _agent(tiny_folder, torch_dtype="bfloat16", device_map="cpu")
    assert isinstance(single.policy, TransformersPolicy)
    assert isinstance(half.policy, TransformersPolicy)
    assert (single.policy.model.dtype, half.policy.model.dtype) == (torch.float32, torch.bfloat16)
    assert single.policy.hash != half.policy.hash
    run(half.generate_response("hello"))


def test_rotary_frequencies_keep_their_dtype(tiny_folder: Path):
    """Rounded to 8 bits they would turn far positions by another angle; the logits are those of `copy_in`."""
    ids = torch.arange(5, 45)[None]
    half = load(tiny_folder).model
    expected = copy_in(half, "bfloat16")(input_ids=ids).logits
    moved = _place(tiny_folder, dtype="bfloat16")[1].model
    assert moved.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(moved(input_ids=ids).logits, expected)


def test_unavailable_attention_falls_back_to_sdpa_with_a_warning(tiny_folder: Path, caplog: pytest.LogCaptureFixture):
    """One warning with the reason, and the agent replies."""
    with caplog.at_level(logging.WARNING):
        agent = _agent(tiny_folder, attn_implementation="flash_attention_2")
    (message,) = [record.getMessage() for record in caplog.records if "flash" in record.getMessage()]
    assert message.startswith("attn_implementation flash_attention_2: sdpa is taken, because ")
    run(agent.generate_response("hello"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_is_refused(tiny_folder: Path):
    """The message names the setting."""
    with pytest.raises(CapacityError, match="device_map"):
        _agent(tiny_folder, device_map="cuda")


def _place(folder: Path, **wishes: str) -> tuple[TransformersPolicy, TransformersPolicy]:
    """A policy before and after its move: float32, its device and sdpa unless `wishes` differ."""
    policy = load(folder)
    return policy, move_to_device(policy, **{"dtype": "float32", "device": "auto", "attention": "sdpa", **wishes})  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_policy_that_is_in_place_is_returned(tiny_folder: Path, device: str):
    """The same object under the same hash."""
    policy, placed = _place(tiny_folder, device=device)
    assert placed is policy


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_another_dtype_is_another_policy_with_the_same_tokenizer(tiny_folder: Path, device: str):
    """bfloat16 on the device where it was, under the hash of what the weights are now."""
    policy, placed = _place(tiny_folder, dtype="bfloat16", device=device)
    assert (placed.model.dtype, placed.model.device.type) == (torch.bfloat16, "cpu")
    assert placed.tokenizer is policy.tokenizer
    assert placed.hash == weights_hash(placed.model) != policy.hash


@pytest.mark.parametrize(
    ("installed", "reason"),
    [(False, "package flash_attn is not installed"), (True, "its kernels cannot read the sampler's slots")],
)
def test_the_reason_for_another_attention_is_that_of_this_machine(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, installed: bool, reason: str
):
    """One line; none about sdpa."""
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if installed or name != "flash_attn" else None
    )
    _place(tiny_folder, attention="flash_attention_2")
    _place(tiny_folder)
    assert [record.getMessage() for record in caplog.records if record.name == "grpo.policy.transformers.device"] == [
        f"attn_implementation flash_attention_2: sdpa is taken, because {reason}"
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_has_two_remedies(tiny_folder: Path):
    """The whole message."""
    with pytest.raises(CapacityError) as refusal:
        _place(tiny_folder, device="cuda")
    assert str(refusal.value) == (
        "device_map cuda cannot be used, because this machine has no CUDA device. Set device_map to auto or cpu"
    )
