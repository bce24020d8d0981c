"""Attention over one flat row [1, tokens] of many conversations, without padding.

Sampling uses slots: each conversation in progress has a slot of a preallocated KV cache, and all may share a prefix
that is held once. A pass has one token of each decoding slot and many tokens of each prefilling slot.

Training uses trees: segments attend to their shared prefixes.

The model's own rule decides which positions a layer attends to (causal, sliding window, chunks). It is evaluated at the
positions in the conversations. Without slots or a tree, transformers' own attention is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from grpo.policy.transformers.forward.kv_cache import KVCache

IMPLEMENTATION = "grpo_flat"
_CHUNK = 256
"""Queries of a segment that attend in one call."""
_LOGITS = 2**22
"""Attention scores that are held at a time if the keys are in two places, 16 MB in float32."""
NEVER = 2**31 - 1
"""Position of a key that no query attends to."""


class MaskRule:
    """Positions that a layer attends to, as the model states them: `mask_function(batch, head, query, key)`."""

    def __init__(self, mask_function: Callable[..., torch.Tensor], **arguments: Any) -> None:
        self._mask_function = mask_function
        self._arguments = arguments

    def additive(self, queries: torch.Tensor, keys: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
        """0 where a query position [..., queries] may attend to a key position [..., keys], −∞ elsewhere.

        The mask is additive, because PyTorch would convert booleans to the same floats in each layer.
        """
        first = torch.zeros((), dtype=torch.long, device=queries.device)
        visible = self._mask_function(first, first, queries[..., :, None], keys[..., None, :])
        zero = torch.zeros((), dtype=dtype, device=queries.device)
        return zero.where(visible, zero.new_full((), -torch.inf))

    @cached_property
    def dense(self) -> torch.Tensor | None:
        """Mask of a padded batch, as transformers makes it for PyTorch's attention; None if it is plainly causal."""
        mask: torch.Tensor | None = sdpa_mask(mask_function=self._mask_function, **self._arguments)
        return mask


_CAUSAL = MaskRule(causal_mask_function)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBatch:
    """Layout of the flat tokens of one forward pass.

    The first `decode_count` tokens belong to one decoding slot each. The rest are prefill runs of several tokens.
    """

    cache: KVCache
    slot: torch.Tensor  # [tokens] slot of each token
    position: torch.Tensor  # [tokens] position of each token in its conversation
    decode_count: int
    slots_in_use: int
    """Slots [0, slots_in_use) are in use."""
    cache_length: int
    """Maximum number of tokens of a conversation after the pass, the shared prefix included."""
    decode_positions: torch.Tensor  # [slots_in_use, 1] position of the token that a slot decodes, 0 for other slots
    prefill_slots: torch.Tensor | None  # [runs]
    prefill_index: torch.Tensor | None  # [runs, width] flat token index, padded with the run's first token
    prefill_positions: torch.Tensor | None  # [runs, width] likewise
    prefill_valid: torch.Tensor | None  # [runs, width] False at padding of prefill_index
    masks: dict[tuple[MaskRule, bool], torch.Tensor] = field(default_factory=dict)

    def mask(self, rule: MaskRule, *, prefill: bool, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask of the decoding slots or the prefill runs, [rows, 1, width, cache_length], made only once."""
        if (rule, prefill) not in self.masks:
            positions = self.prefill_positions if prefill else self.decode_positions
            assert positions is not None
            columns = torch.arange(self.cache_length, device=positions.device)
            self.masks[rule, prefill] = rule.additive(positions, columns, dtype=dtype)[:, None]
        return self.masks[rule, prefill]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBlock:
    """Segments with similar numbers of queries and keys, which attend in one call. Padding repeats a first token."""

    queries: torch.Tensor  # [segments, width] flat token index
    keys: torch.Tensor  # [segments, past + width] flat token index
    query_positions: torch.Tensor  # [segments, width]
    key_positions: torch.Tensor  # [segments, past + width], `NEVER` at padding
    masks: dict[tuple[MaskRule, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def mask(self, rule: MaskRule, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask, [segments, 1, width, past + width], made only once."""
        if (rule, dtype) not in self.masks:
            mask = rule.additive(self.query_positions, self.key_positions, dtype=dtype)[:, None]
            self.masks[rule, dtype] = mask
        return self.masks[rule, dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBatch:
    """Attention layout of a flat row of segments that share prefixes."""

    blocks: tuple[TreeBlock, ...]
    place: torch.Tensor  # [tokens] row of each flat token in the padded outputs of all blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """Scale, soft cap and sinks of a layer's attention scores, applied before the softmax."""

    scaling: float | None
    softcap: float | None
    """Scores s become softcap · tanh(s / softcap) (Gemma 2, arXiv 2408.00118)."""
    sinks: torch.Tensor | None  # [heads]
    """Attention sinks: a logit in the softmax without a value (gpt-oss)."""


def flat_attention(
    module: Any,
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    value: torch.Tensor,  # [1, kv_heads, tokens, value_dim]
    attention_mask: MaskRule | torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    slots: SlotBatch | None = None,
    tree: TreeBatch | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend within slots or along a tree, and return [1, tokens, heads, value_dim].

    Raises `TypeError` if the layer adds its own values to the mask or to the scores.
    """
    scores = _Scores(scaling=scaling, softcap=softcap, sinks=s_aux)
    if tree is None and slots is None:
        mask = attention_mask.dense if isinstance(attention_mask, MaskRule) else attention_mask
        if softcap is None and s_aux is None:
            output: tuple[torch.Tensor, torch.Tensor | None] = sdpa_attention_forward(
                module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs
            )
            return output
        return _attend(query, key, value, _as_additive(mask, query, key), scores).transpose(1, 2), None
    if isinstance(attention_mask, torch.Tensor) or kwargs.get("position_bias") is not None:
        raise TypeError(f"{type(module).__name__} adds its own values to the attention scores")
    rule = attention_mask or _CAUSAL
    if tree is not None:
        return _tree_attention(query, key, value, tree, rule, scores), None
    assert slots is not None
    return _slot_attention(module, query, key, value, slots, rule, scores), None


def _as_additive(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    if mask is None:
        queries, keys = (torch.arange(part.shape[2], device=query.device) for part in (query, key))
        return _CAUSAL.additive(queries + len(keys) - len(queries), keys, dtype=query.dtype)[None, None]
    zero = query.new_zeros(())
    return zero.where(mask, zero.new_full((), -torch.inf)) if mask.dtype == torch.bool else mask


def _attend(
    query: torch.Tensor,  # [rows, heads, width, head_dim]
    key: torch.Tensor,  # [rows, kv_heads, length, head_dim]
    value: torch.Tensor,  # [rows, kv_heads, length, value_dim]
    mask: torch.Tensor,  # [rows, 1, width, length]
    scores: _Scores,
) -> torch.Tensor:
    """Attention of grouped heads, [rows, heads, width, value_dim]."""
    if query.requires_grad and query.device.type == "cpu" and query.dtype == torch.bfloat16:
        # PyTorch's kernel takes two to four times as long for gradients in bfloat16, if queries are few
        output = _attend(query.float(), key.float(), value.float(), mask.float(), scores)
        return output.to(query.dtype)
    rows, heads, width, _ = query.shape
    kv_heads = key.shape[1]
    if scores.softcap is None and scores.sinks is None:
        if width > 1:
            if query.is_cuda and heads > kv_heads:
                # only PyTorch's kernel that keeps all scores reads grouped heads with a mask: on an H100 it needs three
                # times the memory in float32, and three times the time in bfloat16 with deterministic kernels
                key, value = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (key, value))
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=scores.scaling, enable_gqa=True
            )
        # with one query, the heads of a group become the rows
        grouped = query.view(rows, kv_heads, heads // kv_heads, -1)
        output = functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scores.scaling)
        return output.reshape(rows, heads, 1, -1)
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, width, -1)
    weights = _weights(torch.matmul(grouped, key[:, :, None].transpose(3, 4)), query.shape[-1], mask, scores)
    return torch.matmul(weights.to(value.dtype), value[:, :, None]).reshape(rows, heads, width, -1)


def _weights(
    logits: torch.Tensor,  # [rows, kv_heads, heads of a group, width, length]
    head_dim: int,
    mask: torch.Tensor,  # [rows, 1, width, length]
    scores: _Scores,
) -> torch.Tensor:
    """Softmax of scaled, capped and masked attention scores, in float32."""
    logits = logits * (head_dim**-0.5 if scores.scaling is None else scores.scaling)
    if scores.softcap is not None:
        logits = torch.tanh(logits / scores.softcap) * scores.softcap
    logits = (logits + mask[:, :, None]).float()
    if scores.sinks is not None:
        rows, kv_heads, _, width, _ = logits.shape
        sinks = scores.sinks.float().view(1, kv_heads, -1, 1, 1).expand(rows, -1, -1, width, 1)
        logits = torch.cat([logits, sinks], dim=-1)
    return logits.softmax(dim=-1)[..., : mask.shape[-1]]


def _attend_with_prefix(
    query: torch.Tensor,  # [rows, heads, width, head_dim]
    key: torch.Tensor,  # [rows, kv_heads, own, head_dim]
    value: torch.Tensor,  # [rows, kv_heads, own, value_dim]
    shared: tuple[torch.Tensor, torch.Tensor],  # [kv_heads, prefix, head_dim], [kv_heads, prefix, value_dim]
    mask: torch.Tensor,  # [rows, 1, width, prefix + own]
    scores: _Scores,
) -> torch.Tensor:
    """Attention to a prefix that all rows share and to their own keys after it, [rows, heads, width, value_dim].

    The queries of many rows, as many as `_LOGITS` allows, are multiplied with the keys of the prefix at once, so that
    the prefix is read only once for all of them.
    """
    rows, heads, width, _ = query.shape
    queries = max(1, _LOGITS // (heads * mask.shape[-1]))  # at a time
    of_row = min(width, queries)
    output = query.new_empty(rows, heads, width, value.shape[-1])
    for row in range(0, rows, max(1, queries // of_row)):
        chunk = slice(row, row + max(1, queries // of_row))
        for start in range(0, width, of_row):
            part = slice(start, start + of_row)
            output[chunk, :, part] = _attend_prefix_and_own(
                query[chunk, :, part], key[chunk], value[chunk], shared, mask[chunk, :, part], scores
            )
    return output


def _attend_prefix_and_own(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    shared: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor,
    scores: _Scores,
) -> torch.Tensor:
    """`_attend_with_prefix`, in one softmax in float32."""
    rows, heads, width, head_dim = query.shape
    kv_heads, prefix = shared[0].shape[:2]
    of_group = query.float().reshape(rows, kv_heads, -1, head_dim)  # [rows, kv_heads, heads of a group · width, dim]
    of_all = of_group.transpose(0, 1).flatten(1, 2)  # [kv_heads, rows · heads of a group · width, dim]
    common = torch.matmul(of_all, shared[0].float().mT).view(kv_heads, rows, -1, prefix).transpose(0, 1)
    logits = torch.cat([common, torch.matmul(of_group, key.float().mT)], dim=-1)
    weights = _weights(logits.view(rows, kv_heads, -1, width, mask.shape[-1]), head_dim, mask, scores).flatten(2, 3)
    common, own = weights.tensor_split([prefix], dim=-1)
    output = torch.matmul(common.transpose(0, 1).flatten(1, 2), shared[1].float())
    output = output.view(kv_heads, rows, -1, value.shape[-1]).transpose(0, 1) + torch.matmul(own, value.float())
    return output.reshape(rows, heads, width, -1).to(value.dtype)


def _attend_in_chunks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scores: _Scores
) -> torch.Tensor:
    """`_attend` if the last keys are at the queries' own positions. No chunk reads keys that come after it."""
    width, past = query.shape[2], key.shape[2] - query.shape[2]
    if width <= _CHUNK:
        return _attend(query, key, value, mask, scores)
    parts = []
    for start, end in pairwise([*range(0, width, _CHUNK), width]):
        keys, values = (part[:, :, : past + end] for part in (key, value))
        parts.append(_attend(query[:, :, start:end], keys, values, mask[:, :, start:end, : past + end], scores))
    return torch.cat(parts, dim=2)


def _tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: TreeBatch,
    rule: MaskRule,
    scores: _Scores,
) -> torch.Tensor:
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))  # [tokens, heads, head_dim]
    outputs = []
    for block in tree.blocks:
        attended = _attend_in_chunks(
            _gather(queries, block.queries),
            _gather(keys, block.keys),
            _gather(values, block.keys),
            block.mask(rule, queries.dtype),
            scores,
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, tree.place).unsqueeze(0)


def _gather(flat: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_dim] at [segments, width] → [segments, heads, width, head_dim]."""
    return flat.index_select(0, index.flatten()).view(*index.shape, *flat.shape[1:]).transpose(1, 2)


def _slot_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: SlotBatch,
    rule: MaskRule,
    scores: _Scores,
) -> torch.Tensor:
    keys, values = slots.cache.layer(module.layer_idx, key, value)
    column = slots.position - slots.cache.shared_length
    keys[slots.slot, :, column] = key[0].transpose(0, 1)
    values[slots.slot, :, column] = value[0].transpose(0, 1)
    shared = slots.cache.shared_layer(module.layer_idx)
    own = slice(0, slots.cache_length - slots.cache.shared_length)

    def attend(queries: torch.Tensor, of: slice | torch.Tensor, *, prefill: bool) -> torch.Tensor:
        mask = slots.mask(rule, prefill=prefill, dtype=queries.dtype)
        if shared is None:
            return _attend(queries, keys[of, :, own], values[of, :, own], mask, scores)
        return _attend_with_prefix(queries, keys[of, :, own], values[of, :, own], shared, mask, scores)

    queries = query[0].transpose(0, 1)  # [tokens, heads, head_dim]
    output = queries.new_empty(*queries.shape[:2], value.shape[3])
    if slots.decode_count:
        count, decode_slots = slots.decode_count, slots.slot[: slots.decode_count]
        decoding = queries.new_zeros(slots.slots_in_use, *queries.shape[1:])
        decoding[decode_slots] = queries[:count]
        attended = attend(decoding[:, :, None], slice(slots.slots_in_use), prefill=False)
        output[:count] = attended[decode_slots, :, 0]
    if slots.prefill_slots is not None and slots.prefill_index is not None and slots.prefill_valid is not None:
        attended = attend(queries[slots.prefill_index].transpose(1, 2), slots.prefill_slots, prefill=True)
        output[slots.prefill_index[slots.prefill_valid]] = attended.transpose(1, 2)[slots.prefill_valid]
    return output.unsqueeze(0)


AttentionInterface.register(IMPLEMENTATION, flat_attention)
AttentionMaskInterface.register(IMPLEMENTATION, MaskRule)
