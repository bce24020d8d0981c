"""Prefix cache: keys and values of closed conversations, by their tokens."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from grpo.policy.transformers.forward.kv_cache import KeysValues
from grpo.policy.transformers.forward.packing import common_prefix_length

_TOKEN: np.dtype[np.int32] = np.dtype(">i4")
"""Big-endian, so that bytes sort like the tokens."""


class PrefixCache:
    """Cache of up to `max_bytes` of keys and values. The least recently used sequence is evicted first.

    kept        S U1 A1        S U2
    put         S U1 A1 U3 A3            replaces S U1 A1, its own beginning
    longest     S U1 A1 U4               S U1 A1 of S U1 A1 U3 A3

    Keys are sorted, so the longest shared prefix belongs to one of the two neighbours.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[KeysValues, int]] = OrderedDict()
        """Keys and values with their bytes, least recently used first."""
        self._keys: list[bytes] = []
        """Sorted. No key is the beginning of another one."""
        self.bytes = 0

    def put(self, tokens: Sequence[int], bytes_needed: int, read: Callable[[], KeysValues]) -> None:
        """Keep a sequence, with the keys and values that `read` returns, unless it is larger than the cache."""
        key = _key(tokens)
        place = bisect_left(self._keys, key)
        if place < len(self._keys) and self._keys[place].startswith(key):
            self._entries.move_to_end(self._keys[place])
            return
        if bytes_needed > self._max_bytes:
            return
        if place and key.startswith(self._keys[place - 1]):
            self._remove(self._keys[place - 1])
        self._make_room(bytes_needed)
        self._entries[key] = read(), bytes_needed
        insort(self._keys, key)
        self.bytes += bytes_needed

    def resize(self, max_bytes: int) -> None:
        """Change the limit, and evict sequences beyond it."""
        self._max_bytes = max_bytes
        self._make_room(0)

    def longest(self, tokens: Sequence[int]) -> tuple[bytes, int]:
        """Key of the sequence that shares the longest prefix with `tokens`, and the prefix's length, 0 if none does."""
        key = _key(tokens)
        place = bisect_left(self._keys, key)
        candidates = self._keys[max(0, place - 1) : place + 1]
        lengths = [_shared(candidate, key) for candidate in candidates]
        best = max(range(len(candidates)), key=lengths.__getitem__, default=None)
        return (b"", 0) if best is None else (candidates[best], lengths[best])

    def take(self, key: bytes) -> KeysValues:
        """Keys and values of a sequence, which becomes the most recently used one."""
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def _make_room(self, bytes_needed: int) -> None:
        while self.bytes + bytes_needed > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: bytes) -> None:
        self.bytes -= self._entries.pop(key)[1]
        del self._keys[bisect_left(self._keys, key)]


def _key(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype=_TOKEN).tobytes()


def _shared(left: bytes, right: bytes) -> int:
    """Number of tokens that two keys share."""
    sequences = [np.frombuffer(key, dtype=_TOKEN) for key in (left, right)]
    return common_prefix_length(sequences)
