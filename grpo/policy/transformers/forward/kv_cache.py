"""KV cache of conversations that are sampled together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

_AHEAD = 64
"""Tokens of each slot that are cleared at a time, so that memory is not touched before it is needed."""

KeysValues = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of one conversation by layer, [kv_heads, tokens, head_dim]."""


class KVCache:
    """Keys and values of `slots` conversations with up to `capacity` tokens each. The capacity grows by doubling.

    If all conversations begin with the same prefix, it is held once, and slots hold the tokens after it. A layer's
    tensors are made when it first writes to them, because layers differ in heads and dimensions.
    """

    def __init__(self, *, slots: int, capacity: int) -> None:
        self._slots = slots
        self.capacity = capacity
        """Tokens that each slot can hold."""
        self.shared_length = 0
        """Tokens of the shared prefix."""
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # [slots, kv_heads, capacity, head_dim]
        self._shared: KeysValues = {}
        self._cleared = 0

    def layer(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, [slots, kv_heads, capacity, head_dim], made for `key` and `value` if missing."""
        if index not in self._layers:
            tensors = (
                part.new_empty(self._slots, part.shape[1], self.capacity, part.shape[3]) for part in (key, value)
            )
            keys, values = tensors
            keys[:, :, : self._cleared] = 0
            values[:, :, : self._cleared] = 0
            self._layers[index] = keys, values
        return self._layers[index]

    def shared_layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Keys and values of the shared prefix in a layer, [kv_heads, shared, head_dim]; None without one."""
        return self._shared.get(index)

    def reserve(self, tokens: int) -> None:
        """Grow every slot to `tokens` tokens. New memory is cleared, because masked values must be finite."""
        own = tokens - self.shared_length
        if own > self.capacity:
            extra = max(own, 2 * self.capacity) - self.capacity
            self._layers = {
                index: (functional.pad(keys, (0, 0, 0, extra)), functional.pad(values, (0, 0, 0, extra)))
                for index, (keys, values) in self._layers.items()
            }
            self.capacity += extra
        if own > self._cleared:
            clear = slice(self._cleared, min(own + _AHEAD, self.capacity))
            for keys, values in self._layers.values():
                keys[:, :, clear] = 0
                values[:, :, clear] = 0
            self._cleared = clear.stop

    @torch.inference_mode()
    def clear(self, slot: int, tokens: int) -> None:
        """Clear a slot after its first `tokens` tokens. The rest may be NaN, but masked values must be finite."""
        own = max(0, tokens - self.shared_length)
        for pair in self._layers.values():
            for part in pair:
                part[slot, :, own : self._cleared] = 0

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        parts = [part for pair in self._layers.values() for part in pair]
        return sum(part.shape[1] * part.shape[3] * part.element_size() for part in parts)

    @torch.inference_mode()
    def read(self, slot: int, tokens: int) -> KeysValues:
        """Copy of the first `tokens` tokens that a slot holds. A shared prefix is not in a slot."""
        return {
            index: (keys[slot, :, :tokens].clone(), values[slot, :, :tokens].clone())
            for index, (keys, values) in self._layers.items()
        }

    @torch.inference_mode()
    def write(self, slot: int, prefix: KeysValues, tokens: int) -> None:
        """Copy the first `tokens` tokens of a `read` result into a slot."""
        for index, pair in prefix.items():
            for part, source in zip(self._layers[index], pair, strict=True):
                part[slot, :, :tokens] = source[:, :tokens]

    @torch.inference_mode()
    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """Copy the first `tokens` tokens of a conversation to the slots of others."""
        own = max(0, tokens - self.shared_length)
        for pair in self._layers.values():
            for part in pair:
                # PyTorch refuses overlapping memory, and sees the overlap if a conversation fills its slot
                part[targets, :, :own] = part[source : source + 1, :, :own].clone()

    def share(self, prefix: KeysValues, tokens: int) -> None:
        """Begin every conversation with the `tokens` tokens of a prefix. Call it only while all slots are empty."""
        self._shared, self.shared_length = prefix, tokens

    @torch.inference_mode()
    def unshare(self, tokens: int, lengths: Sequence[int]) -> None:
        """Shorten the shared prefix to `tokens`, and move its end into the first slots, of conversations `lengths`."""
        moved = self.shared_length - tokens
        own = max(0, max(lengths, default=0) - self.shared_length)
        if any(lengths):
            capacity = max(self.capacity, moved + own)

            def move(part: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
                slots = part.new_empty(part.shape[0], part.shape[1], capacity, part.shape[3])
                slots[:, :, : moved + own] = 0
                slots[: len(lengths), :, :moved] = rest
                slots[: len(lengths), :, moved : moved + own] = part[: len(lengths), :, :own]
                return slots

            self._layers = {
                index: (
                    move(keys, self._shared[index][0][:, tokens:]),
                    move(values, self._shared[index][1][:, tokens:]),
                )
                for index, (keys, values) in self._layers.items()
            }
            self.capacity, self._cleared = capacity, moved + own
        kept = self._shared.items() if tokens else ()
        self._shared = {index: (keys[:, :tokens].clone(), values[:, :tokens].clone()) for index, (keys, values) in kept}
        self.shared_length = tokens
