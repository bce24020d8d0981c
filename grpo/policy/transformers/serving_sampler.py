"""Continuous batching for serving: prompts in chunks beside running turns, and prefixes of closed conversations.

pass    conversation 1    2             3
1       decode            prompt 128    –
2       decode            prompt 100    prompt 28      128 prompt tokens a pass, first come first served
3       decode            decode        prompt 60

A new conversation copies the longest prefix that a closed one or one in progress has read. If one that is reading its
prompt will have read a longer one, it waits for that.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from transformers import PreTrainedModel

from grpo.policy.transformers.packing import common_prefix_length
from grpo.policy.transformers.prefix_cache import PrefixCache
from grpo.policy.transformers.sampler import SlotSampler
from grpo.policy.transformers.turn_sampler import Turn, TurnSession

_MIN_SHARED = 16
"""Fewest tokens that are copied, or waited for, rather than read."""


class ServingSampler(SlotSampler):
    """`SlotSampler` whose passes are short, for turns that come at any time."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_ids: Collection[int],
        concurrency: int,
        max_context: int,
        prefill_chunk: int,
        prefix_cache_bytes: int,
    ) -> None:
        super().__init__(model, stop_ids=stop_ids, concurrency=concurrency, max_context=max_context)
        self._slots = concurrency
        self._prefill_chunk = prefill_chunk
        self._prefixes = PrefixCache(max_bytes=prefix_cache_bytes)
        self.prefix_queries = 0
        """Prompt tokens of new conversations."""
        self.prefix_hits = 0
        """Those that were copied."""

    @property
    def kv_tokens(self) -> int:
        """Tokens in slots."""
        return sum(session.length for session in tuple(self._holders))

    @property
    def kv_capacity(self) -> int:
        """Tokens that all slots can hold before they grow."""
        return self._slots * self._cache.capacity

    @property
    def prefix_cache_bytes(self) -> int:
        """Bytes of the keys and values of closed conversations."""
        return self._prefixes.bytes

    def release(self, session: TurnSession) -> None:
        """Free the slot of a finished conversation, whose keys and values go to the prefix cache."""
        slot, length = session.slot, session.length
        if slot is not None and length >= _MIN_SHARED:
            size = length * self._cache.token_bytes
            self._prefixes.put(session.history, size, lambda: self._cache.read(slot, length))
        super().release(session)

    def _step(self) -> None:
        """See `TurnSampler`."""
        turns, later = self._next_pieces()
        turns.sort(key=lambda turn: len(turn.unread) > 1)
        logits = self._forward(turns)
        rows: list[int] = []
        for row, turn in enumerate(turns):
            if id(turn) not in later:
                rows.append(row)
                continue
            turn.session.history += turn.unread
            turn.unread = later[id(turn)]
        sampled = [turns[row] for row in rows]
        ids = set(map(id, sampled))
        rest = [turn for turn in self._active if id(turn) not in ids]
        if not sampled:
            return
        try:
            self._sample(
                sampled, logits if len(rows) == len(turns) else logits[torch.tensor(rows, device=self._device)]
            )
        finally:  # all of them are still active where an error ends the batch
            self._active = [*[turn for turn in self._active if id(turn) in ids], *rest]

    def _next_pieces(self) -> tuple[list[Turn], dict[int, list[int]]]:
        """Turns of the next pass; the unread tokens of a prompt are cut, and those after the cut are returned by id."""
        room = self._prefill_chunk
        turns: list[Turn] = []
        later: dict[int, list[int]] = {}
        reading: list[list[int]] = []
        for turn in self._active:
            if not turn.token_ids:
                if not room or (turn.session.length == 0 and not self._begin(turn, reading)):
                    continue
                reading.append(turn.session.history + turn.unread)
                if len(turn.unread) > room:
                    turn.unread, later[id(turn)] = turn.unread[:room], turn.unread[room:]
                room -= len(turn.unread)
            turns.append(turn)
        return turns, later

    def _begin(self, turn: Turn, reading: list[list[int]]) -> bool:
        """Copy the longest known prefix of a new conversation; False if a prompt in `reading` is a longer one.

        The last token of its prompt stays unread.
        """
        known = turn.unread[:-1]
        key, length = self._prefixes.longest(known)
        source: TurnSession | None = None
        for holder in self._holders:
            shared = _shared(holder.history, known, more_than=length)
            if shared > length:
                source, length = holder, shared
        if any(_shared(prompt, known, more_than=length) - length >= _MIN_SHARED for prompt in reading):
            return False
        self.prefix_queries += len(turn.unread)
        if length < _MIN_SHARED:
            return True
        assert turn.session.slot is not None
        if source is None:
            self._cache.write(turn.session.slot, self._prefixes.take(key), length)
        else:
            assert source.slot is not None
            self._cache.copy(source.slot, [turn.session.slot], length)
        self.prefix_hits += length
        turn.cached_tokens = length
        turn.session.history, turn.unread = turn.unread[:length], turn.unread[length:]
        return True


def _shared(left: list[int], right: list[int], *, more_than: int) -> int:
    """Length of the common prefix, if it is `more_than` a length; else any smaller number."""
    if min(len(left), len(right)) <= more_than or left[more_than] != right[more_than]:
        return 0
    return common_prefix_length([np.array(left, np.int32), np.array(right, np.int32)])
