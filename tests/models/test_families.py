"""Tiny models: every family is built or named, alike each time, with settings that have an effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.models.families import families, tiny_config, tiny_model, unbuildable

IDS = torch.randint(8, 200, (1, 64), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _logprobs(model: PreTrainedModel) -> torch.Tensor:
    return torch.log_softmax(model(input_ids=IDS, use_cache=False).logits.float(), dim=-1)


def test_every_family_is_built_or_has_a_reason_why_not():
    """The list is transformers' own; at most five have a reason."""
    assert {*families(), *unbuildable()} == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert not set(families()) & set(unbuildable())
    assert len(unbuildable()) <= 5
    assert all(len(reason.split()) > 5 for reason in unbuildable().values())


def test_a_model_is_the_same_each_time():
    """In float32 and evaluation mode; another seed gives other weights, and the global generator stays."""
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second, other = tiny_model("qwen3"), tiny_model("qwen3"), tiny_model("qwen3", seed=1)
    assert torch.equal(torch.rand(2), expected)
    assert not first.training
    assert {tensor.dtype for tensor in first.state_dict().values()} == {torch.float32}
    assert torch.equal(_logprobs(first), _logprobs(second))
    assert not torch.allclose(_logprobs(first), _logprobs(other), atol=1.0)


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("gemma3_text", {"sliding_attention", "full_attention"}),
        ("llama4_text", {"chunked_attention", "full_attention"}),
        ("lfm2", {"conv", "full_attention"}),
        ("qwen3_next", {"linear_attention", "full_attention"}),
        ("nemotron_h", {"linear_attention", "full_attention", "moe", "mlp"}),
    ],
)
def test_every_kind_of_layer_is_there(family: str, kinds: set[str]):
    """In at most five layers, although the default config has the first of a kind only after many."""
    config = tiny_config(family)
    assert set(config.layer_types) == kinds
    assert config.num_hidden_layers == len(config.layer_types) <= 5


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("mistral", {"sliding_window": 400}),
        ("qwen2", {"sliding_window": 400}),
        ("phi3", {"sliding_window": 400}),
        ("llama4_text", {"attention_chunk_size": 400}),
        ("llama4_text", {"floor_scale": 8192}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma2", {"query_pre_attn_scalar": 16}),
        ("cohere2", {"logit_scale": 1.0}),
        ("granite", {"embedding_multiplier": 1.0}),
        ("granite", {"attention_multiplier": 0.25}),
        ("deepseek_v32", {"index_topk": 400}),
    ],
)
def test_a_setting_that_is_ignored_shows(family: str, change: dict[str, Any]):
    """The same weights without it: some log-probability is off by at least .1 nats."""
    model, config = tiny_model(family), tiny_config(family)
    for name, value in change.items():
        setattr(config, name, value)
    other = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    other.load_state_dict(model.state_dict())
    assert (_logprobs(other) - _logprobs(model)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("family", "name"), [("gpt_oss", "sinks"), ("qwen3", "q_norm.weight"), ("gpt2", "c_attn.bias")]
)
def test_a_weight_that_is_ignored_shows(family: str, name: str):
    """Sinks, norms and biases are neither 0 nor 1: without them some log-probability is off by at least .1 nats."""
    model = tiny_model(family)
    before = _logprobs(model)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(name):
                parameter.fill_({"sinks": -1e9, "q_norm.weight": 1.0, "c_attn.bias": 0.0}[name])
    assert (_logprobs(model) - before).abs().max() > 0.1
