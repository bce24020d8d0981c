"""Attention within slots and along trees of shared beginnings, against plain causal attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from grpo.policy.transformers.forward.attention import (
    NEVER,
    MaskRule,
    SlotBatch,
    TreeBatch,
    TreeBlock,
    flat_attention,
)
from grpo.policy.transformers.forward.kv_cache import KVCache
from grpo.policy.transformers.model import load

INF = float("inf")


def test_a_rule_is_evaluated_at_any_positions():
    """A window of 2: position 5 attends to 4 and 5, not to 3, 6 or padding."""
    mask = MaskRule(sliding_window_causal_mask_function(2)).additive(
        torch.tensor([[5]]), torch.tensor([[3, 4, 5, 6, NEVER]]), dtype=torch.float32
    )
    assert mask.tolist() == [[[-INF, 0, 0, -INF, -INF]]]


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

    is_causal, num_key_value_groups, layer_idx = True, 2, 0


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


def _block(queries: list[list[int]], keys: list[list[int]], positions: list[list[int]]) -> TreeBlock:
    """Block whose queries are at the last positions of its keys."""
    width = len(queries[0])
    return TreeBlock(
        queries=torch.tensor(queries),
        keys=torch.tensor(keys),
        query_positions=torch.tensor(positions)[:, -width:],
        key_positions=torch.tensor(positions),
    )


def _siblings() -> TreeBatch:
    """Tokens 0 1 | 2 3 | 4: two siblings after a shared prefix; the second is padded with its first token."""
    prefix = _block([[0, 1]], [[0, 1]], [[0, 1]])
    siblings = _block([[2, 3], [4, 4]], [[0, 1, 2, 3], [0, 1, 4, 4]], [[0, 1, 2, 3]] * 2)
    return TreeBatch(blocks=(prefix, siblings), place=torch.tensor([0, 1, 2, 3, 4]))


_WINDOW = MaskRule(sliding_window_causal_mask_function(2))
_SINKS = torch.tensor([0.3, -1.0, 2.0, 0.0])


def _written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, softcap: float | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Attention with a window of 2, a soft cap and sinks, position by position and head by head."""
    output = torch.zeros(1, query.shape[2], 4, value.shape[3])
    for head in range(4):
        for position in range(query.shape[2]):
            keys = range(max(0, position - 1), position + 1)
            scores = torch.stack([0.5 * query[0, head, position] @ key[0, head // 2, k] for k in keys])
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            sink = sinks[head].exp() if sinks is not None else 0.0
            weights = scores.exp() / (scores.exp().sum() + sink)
            output[0, position, head] = sum(w * value[0, head // 2, k] for w, k in zip(weights, keys, strict=True))
    return output


@pytest.mark.parametrize(("softcap", "sinks"), [(None, None), (0.7, None), (None, _SINKS), (0.7, _SINKS)])
def test_windows_caps_and_sinks_hold_along_a_tree_and_in_slots(softcap: float | None, sinks: torch.Tensor | None):
    """Sequences 0 1 2 3 and 0 1 4 of a tree; four tokens prefilled into slot 1, then the last again as a decode."""
    query, key, value = _vectors(5)
    value = value[..., :3]
    kinds = {"scaling": 0.5, "softcap": softcap, "s_aux": sinks}
    branches, _ = flat_attention(None, query, key, value, _WINDOW, tree=_siblings(), **kinds)
    for sequence in ([0, 1, 2, 3], [0, 1, 4]):
        parts = (part[:, :, sequence] for part in (query, key, value))
        assert torch.allclose(branches[:, sequence], _written_out(*parts, softcap=softcap, sinks=sinks), atol=1e-6)

    first = tuple(part[:, :, :4] for part in (query, key, value))
    expected = _written_out(*first, softcap=softcap, sinks=sinks)
    cache = KVCache(slots=2, capacity=4)
    cache.reserve(4)
    prefill = _slots(cache, position=[0, 1, 2, 3])
    layer = _Layer()
    assert torch.allclose(flat_attention(layer, *first, _WINDOW, slots=prefill, **kinds)[0], expected, atol=1e-6)
    last = tuple(part[:, :, 3:4] for part in (query, key, value))
    decode = _slots(cache, position=[3])
    assert torch.allclose(flat_attention(layer, *last, _WINDOW, slots=decode, **kinds)[0], expected[:, 3:], atol=1e-6)


@pytest.mark.parametrize("softcap", [None, 0.7])
def test_attention_in_bfloat16_is_computed_in_float32_on_a_cpu(softcap: float | None):
    """Outputs and gradients are those of float32, rounded once."""
    rounded = [part.bfloat16().requires_grad_() for part in _vectors(5)]
    exact = [part.detach().float().requires_grad_() for part in rounded]
    outputs = []
    for parts in (rounded, exact):
        output, _ = flat_attention(None, *parts, _WINDOW, tree=_siblings(), scaling=0.5, softcap=softcap)
        output.sum().backward()
        outputs.append(output)
    assert outputs[0].dtype == torch.bfloat16
    assert outputs[0].equal(outputs[1].bfloat16())
    for few, many in zip(rounded, exact, strict=True):
        assert few.grad is not None
        assert many.grad is not None
        assert torch.allclose(few.grad.float(), many.grad, atol=1e-2)


def _slots(cache: KVCache, *, position: list[int]) -> SlotBatch:
    """Slot 1 with one decoding token, or a prefill of several; slot 0 is in use by another conversation."""
    tokens, is_decode = len(position), len(position) == 1
    return SlotBatch(
        cache=cache,
        slot=torch.ones(tokens, dtype=torch.long),
        position=torch.tensor(position),
        decode_count=int(is_decode),
        slots_in_use=2,
        cache_length=position[-1] + 1,
        decode_positions=torch.tensor([[0], [position[-1]]]),
        prefill_slots=None if is_decode else torch.tensor([1]),
        prefill_index=None if is_decode else torch.arange(tokens)[None],
        prefill_positions=None if is_decode else torch.tensor([position]),
        prefill_valid=None if is_decode else torch.ones(1, tokens, dtype=torch.bool),
    )


@pytest.mark.parametrize("logits", [1, 30, 2**22], ids=["a query", "a few queries", "all queries"])
@pytest.mark.parametrize("rule", [_WINDOW, None], ids=["window", "causal"])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, None), (0.7, _SINKS)])
def test_a_prefix_that_is_held_once_is_attended_to_by_all_slots(
    softcap: float | None,
    sinks: torch.Tensor | None,
    rule: MaskRule | None,
    logits: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """Tokens 0 1 2 shared, 3 4 prefilled into slot 1, 4 again as a decode: as in a slot that holds all of them."""
    monkeypatch.setattr("grpo.policy.transformers.forward.attention._LOGITS", logits)
    vectors = _vectors(5)
    kinds = {"scaling": 0.5, "softcap": softcap, "s_aux": sinks}
    whole = KVCache(slots=2, capacity=5)
    whole.reserve(5)
    every = _slots(whole, position=[0, 1, 2, 3, 4])
    expected, _ = flat_attention(_Layer(), *vectors, rule, slots=every, **kinds)
    if rule is _WINDOW:
        assert torch.allclose(expected, _written_out(*vectors, softcap=softcap, sinks=sinks), atol=1e-6)

    cache = KVCache(slots=2, capacity=2)
    cache.share(whole.read(1, 3), 3)
    cache.reserve(5)
    for position in ([3, 4], [4]):
        parts = (part[:, :, position] for part in vectors)
        answer, _ = flat_attention(_Layer(), *parts, rule, slots=_slots(cache, position=position), **kinds)
        assert torch.allclose(answer, expected[:, position], atol=1e-6)
    assert cache.capacity == 2


def test_a_layer_that_adds_values_to_its_scores_is_refused():
    """ALiBi as a tensor in place of the mask, and a position bias."""
    query, key, value = _vectors(5)
    with pytest.raises(TypeError, match="adds its own values"):
        flat_attention(_Layer(), query, key, value, torch.zeros(1, 1, 5, 5), tree=_siblings())
    with pytest.raises(TypeError, match="adds its own values"):
        flat_attention(_Layer(), query, key, value, _WINDOW, tree=_siblings(), position_bias=torch.zeros(1))


@pytest.mark.parametrize("mask", ["none", "boolean"])
def test_a_cap_holds_without_slots_and_trees(mask: str):
    """Five tokens of one conversation, causal; PyTorch's attention has no cap."""
    query, key, value = _vectors(5)
    seen = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril() if mask == "boolean" else None
    output, _ = flat_attention(_Layer(), query, key, value, seen, scaling=1.0, softcap=0.5)
    scores = 0.5 * torch.tanh(query @ key.repeat_interleave(2, dim=1).transpose(2, 3) / 0.5)
    weights = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -INF).softmax(dim=-1)
    assert torch.allclose(output, (weights @ value.repeat_interleave(2, dim=1)).transpose(1, 2), atol=1e-6)


def test_a_dense_mask_is_that_of_transformers():
    """A window of 2 over three tokens of which the first is padding."""
    rule = MaskRule(
        sliding_window_causal_mask_function(2),
        batch_size=1,
        q_length=3,
        kv_length=3,
        attention_mask=torch.tensor([[False, True, True]]),
        allow_is_causal_skip=False,
    )
    assert rule.dense is not None
    assert rule.dense.int().tolist() == [[[[0, 0, 0], [0, 1, 0], [0, 1, 1]]]]
    assert MaskRule(causal_mask_function, batch_size=1, q_length=3, kv_length=3).dense is None


@pytest.mark.parametrize("scaling", [None, 2.0])
def test_segments_of_a_tree_read_their_past_and_themselves(scaling: float | None):
    """Tokens 0 1 | 2 3 | 4: two siblings after a shared beginning; each reads as its own sequence would.

    Without a scale it is 1 / sqrt(6). The third sibling is shorter and padded with its first token.
    """
    query, key, value = _vectors(5)
    tree = _siblings()
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
    alone = _block([[0], [1]], [[0], [1]], [[0], [0]])
    there, back = (
        flat_attention(None, query, key, value, None, tree=TreeBatch(blocks=(alone,), place=torch.tensor(place)))[0]
        for place in ([0, 1], [1, 0])
    )
    assert torch.equal(there[:, [1, 0]], back)
    assert torch.allclose(there, value.repeat_interleave(2, dim=1).transpose(1, 2))


def test_the_mask_has_the_dtype_of_the_queries():
    """PyTorch's attention takes no other."""
    query, key, value = (part.bfloat16() for part in _vectors(1))
    block = _block([[0]], [[0]], [[0]])
    tree = TreeBatch(blocks=(block,), place=torch.tensor([0]))
    assert flat_attention(None, query, key, value, None, tree=tree)[0].dtype == torch.bfloat16


def test_a_model_without_slots_or_trees_still_generates(tiny_folder: Path):
    """transformers' own generation, with its cache and masks, is that of the model with PyTorch's attention."""
    model = load(tiny_folder).model
    prompt = {"input_ids": torch.arange(5, 12)[None], "attention_mask": torch.ones(1, 7, dtype=torch.long)}
    flat = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    model.set_attn_implementation("sdpa")
    assert torch.equal(model.generate(**prompt, max_new_tokens=8, do_sample=False), flat)
