"""A new tokenizer and a new model: what a token is, and what the same seed gives."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from grpo.pretrain.init_model import CHAT_TEMPLATE, CONTROL_TOKENS, init_model, train_tokenizer

TEXTS = ["hello there how are you", "my order 1234 is broken", "the lamp of order 56 is broken"] * 20
PHRASE = '", "arguments": {'


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, vocabulary=300, phrases=(PHRASE,))


def _model(tokenizer: PreTrainedTokenizerFast, *, seed: int = 3) -> LlamaForCausalLM:
    return init_model(tokenizer, hidden_size=32, layers=2, heads=4, kv_heads=2, mlp_size=48, seed=seed)


def test_every_digit_is_a_token_of_its_own(tokenizer: PreTrainedTokenizerFast):
    """A number that occurs sixty times is split into digits too, so that it can be copied."""
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]


def test_frequent_words_are_learned_up_to_the_vocabulary(tokenizer: PreTrainedTokenizerFast):
    """8 control tokens, 256 bytes and 36 merges are 300; the phrase comes beside them."""
    assert len(tokenizer) == 301
    assert len(tokenizer.tokenize("order")) < 5
    assert len(train_tokenizer(TEXTS, vocabulary=270)) == 270


def test_a_phrase_is_one_token(tokenizer: PreTrainedTokenizerFast):
    """In the middle of a text, and without it it is several."""
    assert tokenizer.tokenize(f"look{PHRASE}x").count(PHRASE) == 1
    assert len(train_tokenizer(TEXTS, vocabulary=300).tokenize(PHRASE)) > 1


@pytest.mark.parametrize("text", ["hello", " hello", "Ünder 7€ – 日本", "a\n\tb"])
def test_any_text_is_read_back_as_it_was(tokenizer: PreTrainedTokenizerFast, text: str):
    """To the byte: no space is put before it, and characters that were never seen are their bytes."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_are_special_and_have_their_places(tokenizer: PreTrainedTokenizerFast):
    """Each is one token, the first eight ids, left out where special tokens are; padding and end differ."""
    assert tokenizer.convert_tokens_to_ids(list(CONTROL_TOKENS)) == list(range(8))
    assert tokenizer.decode(tokenizer.encode(f"hello{''.join(CONTROL_TOKENS)}"), skip_special_tokens=True) == "hello"
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|pad|>", "<|end|>")
    assert tokenizer.extra_special_tokens == [*CONTROL_TOKENS[2:]]
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.model_max_length == 1024


def test_a_model_has_the_configured_sizes(tokenizer: PreTrainedTokenizerFast):
    """A forward pass gives a logit for each of 301 tokens; 1024 positions, tied embeddings, float32."""
    model = _model(tokenizer)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes["model.embed_tokens.weight"] == (301, 32)
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (32, 32)
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (16, 32)
    assert shapes["model.layers.1.mlp.up_proj.weight"] == (48, 32)
    assert "model.layers.2.mlp.up_proj.weight" not in shapes
    assert model.config.max_position_embeddings == 1024
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.dtype == torch.float32
    assert (model.config.eos_token_id, model.config.pad_token_id, model.config.bos_token_id) == (1, 0, None)


def test_the_seed_draws_the_weights(tokenizer: PreTrainedTokenizerFast):
    """The same from equal seeds modulo 2⁶⁴, others from another seed."""
    seeds = (3, 2**64 + 3, 4)  # torch takes no seed above 2⁶⁴
    first, again, other = (_model(tokenizer, seed=seed).model.embed_tokens.weight for seed in seeds)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
