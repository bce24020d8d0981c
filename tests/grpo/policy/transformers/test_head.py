from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from grpo.errors import PolicyError
from grpo.policy.transformers.forward.head import base_model, language_model_head
from tests.models.families import tiny_model


@pytest.mark.parametrize("family", ["llama", "cohere", "granite", "gemma2", "opt", "llama4_text", "falcon_h1"])
def test_logits_are_those_of_the_model(family: str):
    """Cohere and Granite scale them, Gemma 2 caps them; OPT's and Llama 4's base models have other places."""
    model = tiny_model(family)
    ids = torch.arange(5, 17)[None]
    with torch.no_grad():
        states = base_model(model)(input_ids=ids, use_cache=False).last_hidden_state[0]
        expected = model(input_ids=ids, use_cache=False).logits[0]
        assert torch.allclose(language_model_head(model)(states), expected, atol=1e-5)


def test_the_gradient_reaches_states_and_head():
    """That of a plain product: d Σ logits / d state = Σ of the head's rows."""
    model = tiny_model("llama")
    states = torch.randn(3, model.config.hidden_size, requires_grad=True)
    language_model_head(model)(states).sum().backward()
    weight = model.lm_head.weight
    assert states.grad is not None
    assert torch.allclose(states.grad, weight.detach().sum(dim=0).expand(3, -1), atol=1e-5)
    assert weight.grad is not None
    assert torch.allclose(weight.grad, states.detach().sum(dim=0).expand_as(weight), atol=1e-5)


def test_the_model_is_left_as_it_was():
    """Its modules are the same objects."""
    model = tiny_model("opt")
    before = dict(model.named_modules())
    language_model_head(model)(torch.zeros(2, model.config.word_embed_proj_dim))
    assert dict(model.named_modules()) == before


def test_a_model_without_a_base_model_is_refused():
    """Its logits cannot be computed from states alone."""
    model = tiny_model("llama")
    model._modules = {"layers": nn.ModuleList()}
    assert isinstance(model, PreTrainedModel)
    with pytest.raises(
        PolicyError, match="LlamaForCausalLM is refused, because its language model head cannot be separated"
    ):
        language_model_head(model)
