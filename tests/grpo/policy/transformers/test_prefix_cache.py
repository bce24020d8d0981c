from __future__ import annotations

import random

import pytest
import torch

from grpo.policy.transformers.forward.kv_cache import KeysValues
from grpo.policy.transformers.sampling.prefix_cache import PrefixCache


def _keys_values(number: int) -> KeysValues:
    return {0: (torch.tensor([number]), torch.tensor([number]))}


def _put(cache: PrefixCache, tokens: list[int], *, size: int = 10, number: int = 0) -> bool:
    """True if the keys and values were read."""
    reads: list[int] = []

    def read() -> KeysValues:
        reads.append(1)
        return _keys_values(number)

    cache.put(tokens, size, read)
    return bool(reads)


def test_the_longest_shared_prefix_is_known():
    """Of [1 2 3 4], [1 2 7] and [9]: three tokens of the first, two of the second, none."""
    cache = PrefixCache(max_bytes=100)
    for number, tokens in enumerate(([1, 2, 3, 4], [1, 2, 7], [9])):
        _put(cache, tokens, number=number)
    for tokens, number, length in (([1, 2, 3, 5, 4], 0, 3), ([1, 2, 7, 7], 1, 3), ([1, 2, 3, 4], 0, 4), ([9, 1], 2, 1)):
        key, shared = cache.longest(tokens)
        assert (int(cache.take(key)[0][0]), shared) == (number, length)
    assert cache.longest([8])[1] == cache.longest([])[1] == 0
    assert PrefixCache(max_bytes=100).longest([1, 2]) == (b"", 0)


def test_tokens_are_compared_as_numbers_not_as_bytes():
    """255 and 256, 65,535 and 65,536: an order of bytes that is not that of numbers would miss neighbours."""
    cache = PrefixCache(max_bytes=1000)
    for tokens in ([255, 1], [256, 1], [65_535, 2], [65_536, 2]):
        _put(cache, tokens)
    assert [cache.longest([token, 2])[1] for token in (255, 256, 65_535, 65_536)] == [1, 1, 2, 2]


def test_the_longest_prefix_is_that_of_a_search_through_all():
    """400 random sequences of 3 tokens in 6 places, against the maximum over those that are kept."""
    numbers = random.Random(5)
    cache, kept = PrefixCache(max_bytes=10**9), []
    for _ in range(400):
        tokens = [numbers.randrange(3) for _ in range(numbers.randrange(1, 7))]
        shared = [
            next((k for k, (a, b) in enumerate(zip(t, tokens, strict=False)) if a != b), min(len(t), len(tokens)))
            for t in kept
        ]
        assert cache.longest(tokens)[1] == max(shared, default=0)
        _put(cache, tokens)
        kept.append(tokens)


def test_a_sequence_replaces_its_own_beginning():
    """[1 2] and [1 2 3 4] take the bytes of the longer one; the shorter is not kept again."""
    cache = PrefixCache(max_bytes=100)
    assert _put(cache, [1, 2], size=20)
    assert _put(cache, [1, 2, 3, 4], size=40)
    assert cache.bytes == 40
    assert not _put(cache, [1, 2, 3], size=30)
    assert not _put(cache, [1, 2, 3, 4], size=40)
    assert cache.bytes == 40


def test_the_least_recently_used_leaves_first():
    """Room for three of 30 bytes: the first is taken again, so the second leaves for a fourth."""
    cache = PrefixCache(max_bytes=99)
    for token in (1, 2, 3):
        _put(cache, [token], size=30)
    cache.take(cache.longest([1, 5])[0])
    _put(cache, [4], size=30)
    assert [cache.longest([token])[1] for token in (1, 2, 3, 4)] == [1, 0, 1, 1]
    assert cache.bytes == 90
    assert not _put(cache, [3], size=30)  # kept already, and used now
    _put(cache, [5], size=30)
    assert [cache.longest([token])[1] for token in (1, 3, 4, 5)] == [0, 1, 1, 1]


@pytest.mark.parametrize("max_bytes", [0, 99, 100])
def test_what_is_larger_than_the_cache_is_not_kept(max_bytes: int):
    """100 bytes fit into 100; what is there stays where they do not."""
    cache = PrefixCache(max_bytes=max_bytes)
    _put(cache, [1], size=9)
    assert _put(cache, [2], size=100) == (max_bytes == 100)
    assert cache.bytes == {0: 0, 99: 9, 100: 100}[max_bytes]


def test_bytes_are_never_above_the_bound():
    """Random sizes up to 40 of 100 bytes: before each read there is room for it."""
    numbers = random.Random(7)
    cache = PrefixCache(max_bytes=100)
    for step in range(500):
        size = numbers.randrange(1, 41)

        def read(size: int = size) -> KeysValues:
            assert cache.bytes + size <= 100
            return _keys_values(0)

        cache.put([step], size, read)
        assert cache.bytes <= 100
