"""Attention over one flat row [1, tokens] of many conversations, without padding.

Slots, for sampling: every conversation in progress has a slot of a preallocated KV cache; a pass has one token of each
decoding slot and many of each prefilling one. Trees, for training: segments attend to their shared prefixes. Without
either, PyTorch's attention is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

IMPLEMENTATION = "grpo_flat"
_AHEAD = 64
"""Tokens of each slot that are cleared at a time, so that unused memory is never touched."""


class KVCache:
    """Keys and values of `slots` conversations, each up to `capacity` tokens; grows by doubling."""

    def __init__(self, *, layers: int, kv_heads: int, head_dim: int, slots: int, capacity: int, like: torch.Tensor):
        shape = (layers, slots, kv_heads, capacity, head_dim)
        self.keys = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.values = torch.empty_like(self.keys)
        self._cleared = 0

    @property
    def capacity(self) -> int:
        """Tokens that each slot can hold."""
        return self.keys.shape[3]

    def reserve(self, tokens: int) -> None:
        """Grow every slot to `tokens` tokens; new ones are cleared, since masked values must be finite."""
        if tokens > self.capacity:
            extra = max(tokens, 2 * self.capacity) - self.capacity
            self.keys = functional.pad(self.keys, (0, 0, 0, extra))
            self.values = functional.pad(self.values, (0, 0, 0, extra))
        if tokens > self._cleared:
            clear = slice(self._cleared, min(tokens + _AHEAD, self.capacity))
            self.keys[:, :, :, clear] = 0
            self.values[:, :, :, clear] = 0
            self._cleared = clear.stop

    @torch.inference_mode()
    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """Copy the first `tokens` of a slot to others: siblings that share the prompt, or the slot it moves to."""
        self.keys[:, targets, :, :tokens] = self.keys[:, source : source + 1, :, :tokens]
        self.values[:, targets, :, :tokens] = self.values[:, source : source + 1, :, :tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBatch:
    """Layout of the flat tokens of one forward pass.

    The first `decode_count` tokens belong to one decoding slot each; the rest are prefill runs of several tokens.
    """

    cache: KVCache
    slot: torch.Tensor  # [tokens] slot of each token
    position: torch.Tensor  # [tokens] position of each token in its slot
    decode_count: int
    slots_in_use: int
    """Slots [0, slots_in_use) are in use."""
    cache_length: int
    """Maximum number of tokens in a slot after the pass."""
    decode_mask: torch.Tensor | None  # [slots_in_use, 1, 1, cache_length], 0 where a slot may attend, -inf elsewhere
    prefill_slots: torch.Tensor | None  # [runs]
    prefill_index: torch.Tensor | None  # [runs, width] flat token index, padded with the run's first token
    prefill_mask: torch.Tensor | None  # [runs, 1, width, cache_length], likewise
    prefill_valid: torch.Tensor | None  # [runs, width] False at padding of prefill_index


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBlock:
    """Segments of similar lengths that attend in one call; padding repeats a segment's first token."""

    queries: torch.Tensor  # [segments, width] flat token index
    keys: torch.Tensor  # [segments, past + width] flat token index
    mask: torch.Tensor
    """[segments, 1, width, past + width], 0 where a query may attend, -inf elsewhere: from booleans PyTorch would make
    and keep the same floats in each layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBatch:
    """Attention layout of a flat row of segments that share prefixes."""

    blocks: tuple[TreeBlock, ...]
    place: torch.Tensor  # [tokens] row of each flat token in the padded outputs of all blocks


def flat_attention(
    module: Any,
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    slots: SlotBatch | None = None,
    tree: TreeBatch | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend within slots or along a tree; returns [1, tokens, heads, head_dim]."""
    if tree is not None:
        return _tree_attention(query, key, value, tree, scaling=scaling), None
    if slots is not None:
        return _slot_attention(module, query, key, value, slots, scaling=scaling), None
    output: tuple[torch.Tensor, torch.Tensor | None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )
    return output


def _tree_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tree: TreeBatch, *, scaling: float | None
) -> torch.Tensor:
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))  # [tokens, heads, head_dim]
    outputs = []
    for block in tree.blocks:
        attended = functional.scaled_dot_product_attention(
            _gather(queries, block.queries),
            _gather(keys, block.keys),
            _gather(values, block.keys),
            attn_mask=block.mask.to(queries.dtype),
            scale=scaling,
            enable_gqa=True,
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
    *,
    scaling: float | None,
) -> torch.Tensor:
    keys, values = slots.cache.keys[module.layer_idx], slots.cache.values[module.layer_idx]
    keys[slots.slot, :, slots.position] = key[0].transpose(0, 1)
    values[slots.slot, :, slots.position] = value[0].transpose(0, 1)

    heads, head_dim = query.shape[1], query.shape[3]
    kv_heads = key.shape[1]
    queries = query[0].transpose(0, 1)  # [tokens, heads, head_dim]
    output = torch.empty_like(queries)
    if slots.decode_count:
        count, decode_slots = slots.decode_count, slots.slot[: slots.decode_count]
        grouped = queries.new_zeros(slots.slots_in_use, kv_heads, heads // kv_heads, head_dim)
        grouped[decode_slots] = queries[:count].reshape(count, kv_heads, heads // kv_heads, head_dim)
        attended = functional.scaled_dot_product_attention(
            grouped,
            keys[: slots.slots_in_use, :, : slots.cache_length],
            values[: slots.slots_in_use, :, : slots.cache_length],
            attn_mask=slots.decode_mask,
            scale=scaling,
        )
        output[:count] = attended[decode_slots].reshape(count, heads, head_dim)
    if slots.prefill_slots is not None and slots.prefill_index is not None and slots.prefill_valid is not None:
        attended = functional.scaled_dot_product_attention(
            queries[slots.prefill_index].transpose(1, 2),
            keys[slots.prefill_slots, :, : slots.cache_length],
            values[slots.prefill_slots, :, : slots.cache_length],
            attn_mask=slots.prefill_mask,
            scale=scaling,
            enable_gqa=True,
        )
        output[slots.prefill_index[slots.prefill_valid]] = attended.transpose(1, 2)[slots.prefill_valid]
    return output.unsqueeze(0)


AttentionInterface.register(IMPLEMENTATION, flat_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
