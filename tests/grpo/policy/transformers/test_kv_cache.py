"""KV cache of conversations that are sampled together, and the prefix that they share."""

from __future__ import annotations

import pytest
import torch

from grpo.policy.transformers.forward.kv_cache import KVCache


def _cache(*, slots: int = 2, capacity: int = 4) -> tuple[KVCache, torch.Tensor, torch.Tensor]:
    """Cache with the keys and values of one layer: 2 heads, keys of 5 and values of 3 numbers."""
    cache = KVCache(slots=slots, capacity=capacity)
    vectors = (torch.zeros(1, 2, 1, size).double() for size in (5, 3))
    return cache, *cache.layer(7, *vectors)


def test_a_layer_has_a_row_of_keys_and_values_in_each_slot():
    """In the shape and dtype of what it writes; a second call gives the same tensors."""
    cache, keys, values = _cache()
    assert (keys.shape, values.shape) == ((2, 2, 4, 5), (2, 2, 4, 3))
    assert (keys.dtype, values.dtype, cache.capacity) == (torch.float64, torch.float64, 4)
    again = cache.layer(7, torch.zeros(1, 2, 1, 5), torch.zeros(1, 2, 1, 3))
    assert (again[0].data_ptr(), again[1].data_ptr()) == (keys.data_ptr(), values.data_ptr())


def test_reserved_tokens_are_cleared_and_written_ones_stay():
    """Not a number until then: masked values must be finite, since 0 times NaN is NaN. A second call clears no more."""
    cache, *parts = _cache(capacity=100)
    for part in parts:
        part.fill_(torch.nan)
    cache.reserve(2)
    for part in parts:
        assert (part[:, :, :66] == 0).all()  # 2 and 64 ahead
        assert part[:, :, 66:].isnan().all()
        part[:, :, :3] = 7
    cache.reserve(66)
    for part in parts:
        assert part[:, :, 66:].isnan().all()
    cache.reserve(67)
    for part in parts:
        assert (part[:, :, :3] == 7).all()
        assert (part[:, :, 3:] == 0).all()
    assert cache.capacity == 100


def test_a_layer_that_writes_first_after_a_reservation_is_cleared():
    """Its 4 reserved tokens are 0, whatever the memory held."""
    cache = KVCache(slots=1, capacity=4)
    cache.reserve(4)
    keys, values = cache.layer(0, torch.ones(1, 1, 1, 64), torch.ones(1, 1, 1, 64))
    assert not keys.any()
    assert not values.any()


@pytest.mark.parametrize("tokens", [3, 4])
def test_a_conversation_is_copied_to_other_slots(tokens: int):
    """Also one that fills its slot of 4 tokens, for which PyTorch sees that slots are parts of the same memory."""
    cache, *parts = _cache(slots=3)
    cache.reserve(4)
    for part in parts:
        part[1] = 7
    cache.copy(1, [0, 2], tokens)
    for part in parts:
        assert (part[:, :, :tokens] == 7).all()
        assert (part[[0, 2], :, tokens:] == 0).all()


@pytest.mark.parametrize(("tokens", "capacity"), [(4, 4), (5, 8), (8, 8), (9, 9)])
def test_a_cache_grows_to_twice_its_size_or_to_what_is_needed(tokens: int, capacity: int):
    """From 4 tokens; what was written stays in its place, and the new ones are 0."""
    cache, keys, values = _cache()
    cache.reserve(4)
    keys[1, 0, 3] = 7
    values[1, 0, 3] = 8
    cache.reserve(tokens)
    keys, values = cache.layer(7, keys, values)
    assert cache.capacity == keys.shape[2] == values.shape[2] == capacity
    assert (keys[1, 0, 3] == 7).all()
    assert (values[1, 0, 3] == 8).all()
    assert (keys.sum(), values.sum()) == (35, 24)


def test_a_prompt_is_copied_to_slots_up_to_its_length():
    """The first 2 of 4 tokens from slot 2 to slots 0 and 3; slot 1 and the other tokens stay."""
    cache, *parts = _cache(slots=4)
    for part in parts:
        part.copy_(torch.rand(part.shape))
    before = [part.clone() for part in parts]
    cache.copy(2, [0, 3], 2)
    for part, old in zip(parts, before, strict=True):
        for target in (0, 3):
            assert torch.equal(part[target, :, :2], old[2, :, :2])
            assert torch.equal(part[target, :, 2:], old[target, :, 2:])
        assert torch.equal(part[1:3], old[1:3])


def test_a_prefix_is_read_and_written_to_another_slot():
    """3 tokens of slot 2; the first 2 of them into slot 0, also after slot 2 has changed."""
    cache, *parts = _cache(slots=3)
    for part in parts:
        part.copy_(torch.rand(part.shape))
    before = [part.clone() for part in parts]
    prefix = cache.read(2, 3)
    for part in parts:
        part[2] = 0
    cache.write(0, prefix, 2)
    assert [part.shape for part in prefix[7]] == [(2, 3, 5), (2, 3, 3)]
    for part, old in zip(parts, before, strict=True):
        assert torch.equal(part[0, :, :2], old[2, :, :2])
        assert torch.equal(part[0, :, 2:], old[0, :, 2:])
        assert torch.equal(part[1], old[1])
    # 2 heads · (5 + 3) numbers · 8 bytes
    assert cache.token_bytes == 128


def _shared_cache() -> tuple[KVCache, tuple[torch.Tensor, ...]]:
    """Two slots of 4 tokens, of which 2 are written, after a shared prefix of 3."""
    cache, *parts = _cache()
    prefix = tuple(torch.rand(2, 3, part.shape[3]).double() for part in parts)
    for part in parts:
        part.copy_(torch.rand(part.shape))
    cache.share({7: prefix}, 3)
    return cache, prefix


def test_a_shared_prefix_takes_no_room_in_slots():
    """3 shared tokens and 4 of each slot are conversations of 7 tokens; an eighth makes slots grow."""
    cache, _ = _shared_cache()
    cache.reserve(7)
    assert cache.capacity == 4
    cache.reserve(8)
    assert cache.capacity == 8


def test_a_conversation_is_copied_without_its_shared_prefix():
    """4 tokens, of which 3 are shared: the first of slot 1 goes to slot 0; with 2 tokens there is nothing to copy."""
    cache, _ = _shared_cache()
    before = [part.clone() for part in cache.layer(7, *(torch.zeros(1, 2, 1, size) for size in (5, 3)))]
    cache.copy(1, [0], 2)
    parts = cache.layer(7, *before)
    assert all(torch.equal(part, old) for part, old in zip(parts, before, strict=True))
    cache.copy(1, [0], 4)
    for part, old in zip(parts, before, strict=True):
        assert torch.equal(part[0, :, :1], old[1, :, :1])
        assert torch.equal(part[0, :, 1:], old[0, :, 1:])


@pytest.mark.parametrize("tokens", [0, 1, 2])
def test_what_is_no_longer_shared_is_in_the_slots_of_conversations(tokens: int):
    """The last 3 − `tokens` of the prefix are before the 2 tokens of slot 0; slot 1, without a conversation, is 0."""
    cache, prefix = _shared_cache()
    own = [part.clone() for part in cache.layer(7, *(torch.zeros(1, 2, 1, size) for size in (5, 3)))]
    cache.unshare(tokens, [5])
    moved = 3 - tokens
    # room for 4 tokens is enough for 1 + 2 and 2 + 2
    assert (cache.shared_length, cache.capacity) == (tokens, max(4, moved + 2))
    for part, old, first in zip(cache.layer(7, *own), own, prefix, strict=True):
        assert torch.equal(part[0, :, :moved], first[:, tokens:])
        assert torch.equal(part[0, :, moved : moved + 2], old[0, :, :2])
        assert not part[1, :, : moved + 2].any()
        with torch.inference_mode():
            part[:, :, moved + 2 :] = torch.nan
    shared = cache.shared_layer(7)
    assert (shared is None) == (tokens == 0)
    for part, first in zip(shared or (), prefix, strict=False):
        assert torch.equal(part, first[:, :tokens])
    with torch.inference_mode():
        cache.reserve(6)  # a sixth token is cleared, whatever the memory held
    for part in cache.layer(7, *own):
        assert not part[:, :, moved + 2 : moved + 3].any()


@pytest.mark.parametrize("tokens", [0, 2])
def test_a_prefix_without_conversations_is_dropped_without_a_copy(tokens: int):
    """Slots stay as they are, and so does their room, however often a prefix comes and goes."""
    cache, prefix = _shared_cache()
    before = [part.data_ptr() for part in cache.layer(7, *prefix)]
    for lengths in ([], [0, 0]):
        cache.share({7: prefix}, 3)
        cache.unshare(tokens, lengths)
        assert (cache.shared_length, cache.capacity) == (tokens, 4)
        assert [part.data_ptr() for part in cache.layer(7, *prefix)] == before
