"""Attention within slots and along trees of shared beginnings, against plain causal attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from grpo.policy.transformers.attention import (
    KVCache,
    TreeBatch,
    TreeBlock,
    flat_attention,
)
from grpo.policy.transformers.model import load

INF = float("inf")


def _cache(*, slots: int = 2, capacity: int = 4) -> KVCache:
    return KVCache(layers=3, kv_heads=2, head_dim=5, slots=slots, capacity=capacity, like=torch.zeros(1).double())


def test_a_cache_has_a_row_of_keys_and_values_in_each_layer_and_slot():
    """In the numbers of the model."""
    cache = _cache()
    assert cache.keys.shape == cache.values.shape == (3, 2, 2, 4, 5)
    assert (cache.keys.dtype, cache.values.dtype, cache.capacity) == (torch.float64, torch.float64, 4)


def test_what_is_reserved_is_cleared_and_what_was_written_stays():
    """Not a number until then: masked places must be finite, since 0 times NaN is NaN. A second call clears no more."""
    cache = _cache(capacity=100)
    for part in (cache.keys, cache.values):
        part.fill_(torch.nan)
    cache.reserve(2)
    for part in (cache.keys, cache.values):
        assert (part[:, :, :, :66] == 0).all()  # 2 and 64 ahead
        assert part[:, :, :, 66:].isnan().all()
        part[:, :, :, :3] = 7
    cache.reserve(66)
    for part in (cache.keys, cache.values):
        assert part[:, :, :, 66:].isnan().all()
    cache.reserve(67)
    for part in (cache.keys, cache.values):
        assert (part[:, :, :, :3] == 7).all()
        assert (part[:, :, :, 3:] == 0).all()
    assert cache.capacity == 100


@pytest.mark.parametrize(("tokens", "capacity"), [(4, 4), (5, 8), (8, 8), (9, 9)])
def test_a_cache_grows_to_twice_its_size_or_to_what_is_asked_for(tokens: int, capacity: int):
    """From 4 tokens; what was written stays in its place, and the new places are 0."""
    cache = _cache()
    cache.reserve(4)
    cache.keys[1, 1, 0, 3] = 7
    cache.values[1, 1, 0, 3] = 8
    cache.reserve(tokens)
    assert cache.capacity == cache.values.shape[3] == capacity
    assert (cache.keys[1, 1, 0, 3] == 7).all()
    assert (cache.values[1, 1, 0, 3] == 8).all()
    assert (cache.keys.sum(), cache.values.sum()) == (35, 40)


def test_a_prompt_is_copied_to_slots_up_to_its_length():
    """The first 2 of 4 tokens from slot 2 to slots 0 and 3; slot 1 and the other tokens stay."""
    cache = _cache(slots=4)
    for part in (cache.keys, cache.values):
        part.copy_(torch.rand(part.shape))
    before = [cache.keys.clone(), cache.values.clone()]
    cache.copy(2, [0, 3], 2)
    for part, old in zip((cache.keys, cache.values), before, strict=True):
        for target in (0, 3):
            assert torch.equal(part[:, target, :, :2], old[:, 2, :, :2])
            assert torch.equal(part[:, target, :, 2:], old[:, target, :, 2:])
        assert torch.equal(part[:, 1:3], old[:, 1:3])


def _vectors(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query of 4 heads, key and value of 2, of 6 numbers each."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.rand(1, heads, tokens, 6, generator=generator) for heads in (4, 2, 2))
    return query, key, value


def _plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
    """Causal attention over one sequence, written out; heads 0 and 1 read key 0, heads 2 and 3 key 1."""
    scores = scaling * query @ key.repeat_interleave(2, dim=1).transpose(2, 3)
    seen = torch.ones(scores.shape[2:], dtype=torch.bool).tril()
    weights = scores.masked_fill(~seen, -INF).softmax(dim=-1)
    return (weights @ value.repeat_interleave(2, dim=1)).transpose(1, 2)


class _Layer(nn.Module):
    """Attributes of a layer that attention reads."""

    is_causal, num_key_value_groups = True, 2


@pytest.mark.parametrize("scaling", [0.3, 2.0])
def test_without_slots_and_trees_it_is_plain_attention(scaling: float):
    """Causal over one sequence, by the scale that was given."""
    query, key, value = _vectors(5)
    answer, weights = flat_attention(_Layer().eval(), query, key, value, None, scaling=scaling)
    assert torch.allclose(answer, _plain(query, key, value, scaling), atol=1e-6)
    assert weights is None


def test_a_mask_and_dropout_are_passed_on_to_plain_attention():
    """A mask that shows token 0 alone gives its value everywhere; all weights dropped give 0."""
    query, key, value = _vectors(3)
    mask = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    mask[..., 0] = True
    answer, _ = flat_attention(_Layer(), query, key, value, mask, scaling=1.0)
    first = value[:, :, :1].repeat_interleave(2, dim=1).transpose(1, 2)
    assert torch.allclose(answer, first.expand_as(answer), atol=1e-6)
    dropped, _ = flat_attention(_Layer().train(), query, key, value, mask, scaling=1.0, dropout=1.0)
    assert (dropped == 0).all()


@pytest.mark.parametrize("scaling", [None, 2.0])
def test_segments_of_a_tree_read_their_past_and_themselves(scaling: float | None):
    """Tokens 0 1 | 2 3 | 4: two siblings after a shared beginning; each reads as its own sequence would.

    Without a scale it is 1 / sqrt(6). The third sibling is shorter and padded with its first token.
    """
    query, key, value = _vectors(5)
    beginning = TreeBlock(
        queries=torch.tensor([[0, 1]]), keys=torch.tensor([[0, 1]]), mask=torch.tensor([[[[0, -INF], [0, 0]]]])
    )
    siblings = TreeBlock(
        queries=torch.tensor([[2, 3], [4, 4]]),
        keys=torch.tensor([[0, 1, 2, 3], [0, 1, 4, 4]]),
        mask=torch.tensor([[0, 0, 0, -INF], [0, 0, 0, 0]]).expand(2, 1, 2, 4),
    )
    tree = TreeBatch(blocks=(beginning, siblings), place=torch.tensor([0, 1, 2, 3, 4]))
    answer, weights = flat_attention(None, query, key, value, None, scaling=scaling, tree=tree)
    assert answer.shape == (1, 5, 4, 6)
    assert weights is None
    scale = 6**-0.5 if scaling is None else scaling
    for sequence, new in (([0, 1, 2, 3], [0, 1, 2, 3]), ([0, 1, 4], [4])):
        alone = _plain(*(part[:, :, sequence] for part in (query, key, value)), scale)
        for token in new:
            assert torch.allclose(answer[:, token], alone[:, sequence.index(token)], atol=1e-6)


def test_answers_of_a_tree_are_put_in_the_order_of_the_row():
    """`place` names the row of each token in the answers of all blocks."""
    query, key, value = _vectors(2)
    alone = TreeBlock(queries=torch.tensor([[0], [1]]), keys=torch.tensor([[0], [1]]), mask=torch.zeros(2, 1, 1, 1))
    there, back = (
        flat_attention(None, query, key, value, None, tree=TreeBatch(blocks=(alone,), place=torch.tensor(place)))[0]
        for place in ([0, 1], [1, 0])
    )
    assert torch.equal(there[:, [1, 0]], back)
    assert torch.allclose(there, value.repeat_interleave(2, dim=1).transpose(1, 2))


def test_a_mask_in_float32_serves_a_model_in_bfloat16():
    """Of the numbers of the query."""
    query, key, value = (part.bfloat16() for part in _vectors(1))
    block = TreeBlock(queries=torch.tensor([[0]]), keys=torch.tensor([[0]]), mask=torch.zeros(1, 1, 1, 1))
    tree = TreeBatch(blocks=(block,), place=torch.tensor([0]))
    assert flat_attention(None, query, key, value, None, tree=tree)[0].dtype == torch.bfloat16


def test_a_model_without_slots_or_trees_still_generates(tiny_folder: Path):
    """transformers' own generation, with its cache and masks, is that of the model with PyTorch's attention."""
    model = load(tiny_folder).model
    prompt = {"input_ids": torch.arange(5, 12)[None], "attention_mask": torch.ones(1, 7, dtype=torch.long)}
    flat = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    model.set_attn_implementation("sdpa")
    assert torch.equal(model.generate(**prompt, max_new_tokens=8, do_sample=False), flat)
