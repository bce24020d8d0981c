"""Attention over one flat row [1, tokens] of many conversations, without padding.

Slots, for sampling: conversations in progress have slots of a preallocated KV cache; a pass has one token of each
decoding slot and many of each prefilling one. Trees, for training: segments attend to their shared prefixes. Which
positions a layer attends to (causal, sliding window, chunks) is the model's own rule, evaluated at the positions of
the conversations. Without slots or a tree, attention is that of transformers.
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

IMPLEMENTATION = "grpo_flat"
_AHEAD = 64
"""Tokens of each slot that are cleared at a time, so that unused memory is never touched."""
_CHUNK = 256
"""Queries of a segment that attend in one call."""
NEVER = 2**31 - 1
"""Position of a key that no query attends to."""


class MaskRule:
    """Positions that a layer attends to, as the model states them: `mask_function(batch, head, query, key)`."""

    def __init__(self, mask_function: Callable[..., torch.Tensor], **arguments: Any) -> None:
        self._mask_function = mask_function
        self._arguments = arguments

    def additive(self, queries: torch.Tensor, keys: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
        """0 where a query position [..., queries] may attend to a key position [..., keys], −∞ elsewhere.

        Additive, since PyTorch would make the same floats from booleans in each layer.
        """
        first = torch.zeros((), dtype=torch.long, device=queries.device)
        visible = self._mask_function(first, first, queries[..., :, None], keys[..., None, :])
        zero = torch.zeros((), dtype=dtype, device=queries.device)
        return zero.where(visible, zero.new_full((), -torch.inf))

    @cached_property
    def dense(self) -> torch.Tensor | None:
        """Mask of a padded batch, as transformers makes it for PyTorch's attention; None for a plain causal one."""
        mask: torch.Tensor | None = sdpa_mask(mask_function=self._mask_function, **self._arguments)
        return mask


_CAUSAL = MaskRule(causal_mask_function)

KeysValues = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of one conversation by layer, [kv_heads, tokens, head_dim]."""


class KVCache:
    """Keys and values of `slots` conversations, each up to `capacity` tokens; grows by doubling.

    Each layer's tensors are made when it first writes to them: layers differ in heads and dimensions.
    """

    def __init__(self, *, slots: int, capacity: int) -> None:
        self._slots = slots
        self.capacity = capacity
        """Tokens that each slot can hold."""
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # [slots, kv_heads, capacity, head_dim]
        self._cleared = 0

    def layer(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, shaped for keys and values [1, kv_heads, tokens, head_dim]."""
        if index not in self._layers:
            tensors = (
                part.new_empty(self._slots, part.shape[1], self.capacity, part.shape[3]) for part in (key, value)
            )
            keys, values = tensors
            keys[:, :, : self._cleared] = 0
            values[:, :, : self._cleared] = 0
            self._layers[index] = keys, values
        return self._layers[index]

    def reserve(self, tokens: int) -> None:
        """Grow every slot to `tokens` tokens; new ones are cleared, since masked values must be finite."""
        if tokens > self.capacity:
            extra = max(tokens, 2 * self.capacity) - self.capacity
            self._layers = {
                index: (functional.pad(keys, (0, 0, 0, extra)), functional.pad(values, (0, 0, 0, extra)))
                for index, (keys, values) in self._layers.items()
            }
            self.capacity += extra
        if tokens > self._cleared:
            clear = slice(self._cleared, min(tokens + _AHEAD, self.capacity))
            for keys, values in self._layers.values():
                keys[:, :, clear] = 0
                values[:, :, clear] = 0
            self._cleared = clear.stop

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        parts = [part for pair in self._layers.values() for part in pair]
        return sum(part.shape[1] * part.shape[3] * part.element_size() for part in parts)

    @torch.inference_mode()
    def read(self, slot: int, tokens: int) -> KeysValues:
        """Copy of the first `tokens` of a slot."""
        return {
            index: (keys[slot, :, :tokens].clone(), values[slot, :, :tokens].clone())
            for index, (keys, values) in self._layers.items()
        }

    @torch.inference_mode()
    def write(self, slot: int, prefix: KeysValues, tokens: int) -> None:
        """Copy the first `tokens` of what `read` returned into a slot."""
        for index, pair in prefix.items():
            for part, source in zip(self._layers[index], pair, strict=True):
                part[slot, :, :tokens] = source[:, :tokens]

    @torch.inference_mode()
    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """Copy the first `tokens` of a slot to others."""
        for pair in self._layers.values():
            for part in pair:
                part[targets, :, :tokens] = part[source : source + 1, :, :tokens]


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
    decode_positions: torch.Tensor  # [slots_in_use, 1] position of the token that a slot decodes, 0 of others
    prefill_slots: torch.Tensor | None  # [runs]
    prefill_index: torch.Tensor | None  # [runs, width] flat token index, padded with the run's first token
    prefill_positions: torch.Tensor | None  # [runs, width] likewise
    prefill_valid: torch.Tensor | None  # [runs, width] False at padding of prefill_index
    masks: dict[tuple[MaskRule, bool], torch.Tensor] = field(default_factory=dict)

    def mask(self, rule: MaskRule, *, prefill: bool, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask of the decoding slots or of the prefill runs, [rows, 1, width, cache_length]; made once."""
        if (rule, prefill) not in self.masks:
            positions = self.prefill_positions if prefill else self.decode_positions
            assert positions is not None
            columns = torch.arange(self.cache_length, device=positions.device)
            self.masks[rule, prefill] = rule.additive(positions, columns, dtype=dtype)[:, None]
        return self.masks[rule, prefill]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBlock:
    """Segments with similar numbers of queries and keys, which attend in one call; padding repeats a first token."""

    queries: torch.Tensor  # [segments, width] flat token index
    keys: torch.Tensor  # [segments, past + width] flat token index
    query_positions: torch.Tensor  # [segments, width]
    key_positions: torch.Tensor  # [segments, past + width], `NEVER` at padding
    masks: dict[tuple[MaskRule, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def mask(self, rule: MaskRule, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask, [segments, 1, width, past + width]; made once."""
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
    """Logit of a position without a value, which takes its part of the softmax (gpt-oss)."""


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
    """Attend within slots or along a tree; returns [1, tokens, heads, value_dim].

    Raises `TypeError` for a layer that adds its own values to the mask or to the scores.
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
    rows, heads, width, _ = query.shape
    kv_heads = key.shape[1]
    if scores.softcap is None and scores.sinks is None:
        if width > 1:
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=scores.scaling, enable_gqa=True
            )
        # one query: the heads of a group are its rows
        grouped = query.view(rows, kv_heads, heads // kv_heads, -1)
        output = functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scores.scaling)
        return output.reshape(rows, heads, 1, -1)
    scaling = query.shape[-1] ** -0.5 if scores.scaling is None else scores.scaling
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, width, -1)
    logits = torch.matmul(grouped, key[:, :, None].transpose(3, 4)) * scaling
    if scores.softcap is not None:
        logits = torch.tanh(logits / scores.softcap) * scores.softcap
    logits = (logits + mask[:, :, None]).float()
    if scores.sinks is not None:
        sinks = scores.sinks.float().view(1, kv_heads, -1, 1, 1).expand(rows, -1, -1, width, 1)
        logits = torch.cat([logits, sinks], dim=-1)
    weights = logits.softmax(dim=-1)[..., : key.shape[2]].to(value.dtype)
    return torch.matmul(weights, value[:, :, None]).reshape(rows, heads, width, -1)


def _attend_in_chunks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scores: _Scores
) -> torch.Tensor:
    """`_attend`, where the last keys are the queries' own positions: no chunk reads keys that come after it."""
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
    keys[slots.slot, :, slots.position] = key[0].transpose(0, 1)
    values[slots.slot, :, slots.position] = value[0].transpose(0, 1)

    queries = query[0].transpose(0, 1)  # [tokens, heads, head_dim]
    output = queries.new_empty(*queries.shape[:2], value.shape[3])
    if slots.decode_count:
        count, decode_slots = slots.decode_count, slots.slot[: slots.decode_count]
        decoding = queries.new_zeros(slots.slots_in_use, *queries.shape[1:])
        decoding[decode_slots] = queries[:count]
        attended = _attend(
            decoding[:, :, None],
            keys[: slots.slots_in_use, :, : slots.cache_length],
            values[: slots.slots_in_use, :, : slots.cache_length],
            slots.mask(rule, prefill=False, dtype=queries.dtype),
            scores,
        )
        output[:count] = attended[decode_slots, :, 0]
    if slots.prefill_slots is not None and slots.prefill_index is not None and slots.prefill_valid is not None:
        attended = _attend(
            queries[slots.prefill_index].transpose(1, 2),
            keys[slots.prefill_slots, :, : slots.cache_length],
            values[slots.prefill_slots, :, : slots.cache_length],
            slots.mask(rule, prefill=True, dtype=queries.dtype),
            scores,
        )
        output[slots.prefill_index[slots.prefill_valid]] = attended.transpose(1, 2)[slots.prefill_valid]
    return output.unsqueeze(0)


AttentionInterface.register(IMPLEMENTATION, flat_attention)
AttentionMaskInterface.register(IMPLEMENTATION, MaskRule)
