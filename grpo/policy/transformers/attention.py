"""Attention over slots: every conversation in flight has a row of a preallocated key-value cache.

A forward pass takes the new tokens of all conversations in one flat row [1, tokens]: one for those that are
speaking, many for those that just heard something. Everything but attention is per token, so nothing is padded.
Without slots the same attention name falls through to PyTorch's, which is what the learner uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

IMPLEMENTATION = "grpo_slots"


class SlotCache:
    """Keys and values of `slots` conversations, each up to `capacity` tokens; grows by doubling."""

    def __init__(self, *, layers: int, kv_heads: int, head_dim: int, slots: int, capacity: int, like: torch.Tensor):
        shape = (layers, slots, kv_heads, capacity, head_dim)
        self.keys = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.values = torch.zeros_like(self.keys)

    @property
    def capacity(self) -> int:
        """Tokens that each slot can hold."""
        return self.keys.shape[3]

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens in every slot."""
        if tokens <= self.capacity:
            return
        extra = max(tokens, 2 * self.capacity) - self.capacity
        self.keys = functional.pad(self.keys, (0, 0, 0, extra))
        self.values = functional.pad(self.values, (0, 0, 0, extra))

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """Give the first `tokens` of a slot to its siblings, which share the prompt."""
        self.keys[:, targets, :, :tokens] = self.keys[:, source : source + 1, :, :tokens]
        self.values[:, targets, :, :tokens] = self.values[:, source : source + 1, :, :tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBatch:
    """Where the flat tokens of one forward pass belong.

    The first `speaking` tokens are one each of that many slots; the rest are runs of several tokens.
    """

    cache: SlotCache
    slot: torch.Tensor  # [tokens] slot of each token
    position: torch.Tensor  # [tokens] position of each token in its slot
    speaking: int
    high: int
    """Slots [0, high) are in use."""
    reach: int
    """No slot in use holds more tokens than this after the pass."""
    speaking_mask: torch.Tensor | None  # [high, 1, 1, reach], True where a speaking slot may look
    run_slots: torch.Tensor | None  # [runs]
    run_index: torch.Tensor | None  # [runs, width] flat token index, padded with the run's first token
    run_mask: torch.Tensor | None  # [runs, 1, width, reach]
    run_real: torch.Tensor | None  # [runs, width] True where run_index is no padding


def slot_attention(
    module: Any,
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    slots: SlotBatch | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend within slots; returns [1, tokens, heads, head_dim]."""
    if slots is None:
        output: tuple[torch.Tensor, torch.Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output
    keys, values = slots.cache.keys[module.layer_idx], slots.cache.values[module.layer_idx]
    keys[slots.slot, :, slots.position] = key[0].transpose(0, 1)
    values[slots.slot, :, slots.position] = value[0].transpose(0, 1)

    heads, head_dim = query.shape[1], query.shape[3]
    kv_heads = key.shape[1]
    asked = query[0].transpose(0, 1)  # [tokens, heads, head_dim]
    answer = torch.empty_like(asked)
    if slots.speaking:
        count, speakers = slots.speaking, slots.slot[: slots.speaking]
        grouped = asked.new_zeros(slots.high, kv_heads, heads // kv_heads, head_dim)
        grouped[speakers] = asked[:count].reshape(count, kv_heads, heads // kv_heads, head_dim)
        attended = functional.scaled_dot_product_attention(
            grouped,
            keys[: slots.high, :, : slots.reach],
            values[: slots.high, :, : slots.reach],
            attn_mask=slots.speaking_mask,
            scale=scaling,
        )
        answer[:count] = attended[speakers].reshape(count, heads, head_dim)
    if slots.run_slots is not None and slots.run_index is not None and slots.run_real is not None:
        attended = functional.scaled_dot_product_attention(
            asked[slots.run_index].transpose(1, 2),
            keys[slots.run_slots, :, : slots.reach].repeat_interleave(heads // kv_heads, dim=1),
            values[slots.run_slots, :, : slots.reach].repeat_interleave(heads // kv_heads, dim=1),
            attn_mask=slots.run_mask,
            scale=scaling,
        )
        answer[slots.run_index[slots.run_real]] = attended.transpose(1, 2)[slots.run_real]
    return answer.unsqueeze(0), None


AttentionInterface.register(IMPLEMENTATION, slot_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
