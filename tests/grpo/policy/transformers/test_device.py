from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.errors import CapacityError
from grpo.policy.transformers.model import TransformersPolicy
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
