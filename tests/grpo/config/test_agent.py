from __future__ import annotations

import pytest
from pydantic import ValidationError

from grpo.config.agent import AgentConfig


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"model_name": " "}, "model_name"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_context": 1}, "max_context"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"torch_dtype": "int8"}, "torch_dtype"),
        ({"attn_implementation": "magic"}, "attn_implementation"),
        ({"device_map": "moon"}, "device_map"),
        ({"memory_window": 0}, "memory_window"),
        ({"strategy": "poker"}, "strategy"),
        ({"enable_context_compression": True, "compression_ratio": 1.0}, "compression_ratio"),
        ({"compression_ratio": 0.4}, "compression_ratio has no effect without enable_context_compression"),
        ({"enable_context_compression": True, "compression_strategy": "zip"}, "compression_strategy"),
        ({"use_stub_model": True}, "stub_responses"),
        ({"model_name": "folder", "stub_responses": ["a"]}, "use_stub_model"),
        ({"enable_lora": True}, "enable_lora"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(setting: dict[str, object], name: str):
    """Out of range, of another type, in conflict with another, or unknown."""
    with pytest.raises(ValidationError, match=name):
        AgentConfig.model_validate(setting)


def test_the_config_of_the_guide_is_valid():
    """All fields as they are printed there."""
    config = AgentConfig(
        model_name="gpt2",
        system_prompt="You are helpful.",
        max_new_tokens=512,
        temperature=0.8,
        top_p=0.9,
        top_k=50,
        torch_dtype="bfloat16",
        attn_implementation="flash_attention_2",
        device_map="auto",
        enable_reasoning=False,
    )
    assert not config.is_stub
