"""Continuous batching for serving: chunked prompts together with running turns, and reuse of closed conversations.

pass    conversation 1    2             3
1       decode            prompt 64     –
2       decode            prompt 64     prompt 60      64 tokens of each prompt, 128 of all, first come first served
3       decode            prompt 28     decode

A closed conversation keeps its slot for a while, so that its next turn can continue there. Another new conversation
copies the longest prefix that a closed or running conversation has read. If a conversation that is still reading its
prompt will soon have read a longer prefix, the new one waits for it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from transformers import PreTrainedModel

from grpo.errors import PolicyError
from grpo.policy.transformers.forward.packing import common_prefix_length
from grpo.policy.transformers.sampling.base import Turn, TurnSampler, TurnSession
from grpo.policy.transformers.sampling.prefix_cache import PrefixCache
from grpo.policy.transformers.sampling.slot_sampler import SlotSampler

_MIN_SHARED = 16
"""Fewest tokens that are copied, or waited for, instead of read."""
_CHUNKS = 2
"""Largest number of prompt chunks in one pass."""
_MIN_IDLE = 2
"""Number of closed conversations that may always keep their slots. Further ones keep them only while as many
conversations are in progress, because each idle slot slows the passes down."""


class ServingSampler(SlotSampler):
    """`SlotSampler` with short passes, because turns may come at any time."""

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
        self._prefill_chunk = prefill_chunk
        self._prefix_cache_bytes = prefix_cache_bytes
        self._prefixes = PrefixCache(max_bytes=prefix_cache_bytes)
        self._idle: dict[TurnSession, int] = {}
        """Closed sessions that keep their slots, with the bytes of their keys and values, in the order of closing."""
        self.prefix_queries = 0
        """Prompt tokens of new conversations."""
        self.prefix_hits = 0
        """Prompt tokens of new conversations that were copied."""

    def _forget_passes(self) -> None:
        """See `TurnSampler`. Raises `PolicyError`, because a server gives each policy a sampler of its own."""
        raise PolicyError("a server's sampler keeps its model. Make another sampler for the new policy")

    @property
    def kv_tokens(self) -> int:
        """Tokens of conversations in progress."""
        return sum(session.length for session in tuple(self._holders) if session not in self._idle)

    @property
    def _held(self) -> int:
        """Number of slots of conversations in progress."""
        return len(self._holders) - len(self._idle)

    @property
    def kv_capacity(self) -> int:
        """Capacity of all slots, in tokens."""
        return self._slots * self._cache.capacity

    @property
    def prefix_cache_bytes(self) -> int:
        """Bytes of the keys and values of closed conversations."""
        return self._prefixes.bytes + sum(tuple(self._idle.values()))

    def share(self, session: TurnSession, fork: TurnSession) -> None:
        """Let a fork read its tokens as a new conversation, which copies the longest prefix that another has read."""
        TurnSampler.share(self, session, fork)

    def release(self, session: TurnSession) -> None:
        """Keep the slot of a finished conversation for its next turn, or free it."""
        size = session.length * self._cache.token_bytes
        if session.slot is None or session in self._idle:
            return
        if session.length < _MIN_SHARED or size > self._prefix_cache_bytes:
            super().release(session)
            return
        self._idle[session] = size
        self._resize_prefixes()
        while self._too_many_idle():
            self._free_slot()

    def _too_many_idle(self) -> bool:
        return len(self._idle) > max(_MIN_IDLE, self._held) or sum(self._idle.values()) > self._prefix_cache_bytes

    def _free_slot(self) -> None:
        """Move the keys and values of the conversation that was closed first to the prefix cache."""
        session = next(iter(self._idle))
        slot, length, size = session.slot, session.length, self._idle.pop(session)
        assert slot is not None
        self._resize_prefixes()
        self._prefixes.put(session.history, size, lambda: self._cache.read(slot, length))
        super().release(session)

    def _resize_prefixes(self) -> None:
        self._prefixes.resize(max(0, self._prefix_cache_bytes - sum(self._idle.values())))

    def _take_slot(self, turn: Turn) -> bool:
        """See `SlotSampler`. The next turn of a closed conversation takes over its slot and the tokens in it."""
        if self._held >= self._concurrency:
            return False
        known = turn.unread[:-1]
        extended = [session for session in self._idle if known[: session.length] == session.history]
        if not extended:
            if len(self._holders) == self._slots:
                self._free_slot()
            self._append_slot(turn.session)
            return True
        closed = max(extended, key=lambda session: session.length)
        del self._idle[closed]
        self._resize_prefixes()
        assert closed.slot is not None
        self._holders[closed.slot] = turn.session
        turn.session.slot, closed.slot = closed.slot, None
        self._skip(turn, closed.length)
        return True

    def _skip(self, turn: Turn, length: int) -> None:
        """Skip the first `length` prompt tokens of a new conversation, which are in its slot, and count them."""
        self.prefix_queries += len(turn.unread)
        self.prefix_hits += length
        turn.cached_tokens = length
        turn.session.history, turn.unread = turn.unread[:length], turn.unread[length:]

    def _step(self) -> None:
        """See `TurnSampler`."""
        turns, later = self._next_pieces()
        turns.sort(key=lambda turn: len(turn.unread) > 1)
        logits = self._forward(turns, self._cache)
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
            self._sample(sampled, rows, logits)
        finally:  # if an error ends the batch, all of them are still active
            self._active = [*[turn for turn in self._active if id(turn) in ids], *rest]

    def _next_pieces(self) -> tuple[list[Turn], dict[int, list[int]]]:
        """Turns of the next pass. Long prompts are cut, and the tokens after the cut are returned by the turn's id."""
        room = _CHUNKS * self._prefill_chunk
        turns: list[Turn] = []
        later: dict[int, list[int]] = {}
        reading: list[list[int]] = []
        for turn in self._active:
            if not turn.token_ids:
                if not room or (turn.session.length == 0 and not self._begin(turn, reading)):
                    continue
                reading.append(turn.session.history + turn.unread)
                piece = min(room, self._prefill_chunk)
                if len(turn.unread) > piece:
                    turn.unread, later[id(turn)] = turn.unread[:piece], turn.unread[piece:]
                room -= len(turn.unread)
            turns.append(turn)
        return turns, later

    def _begin(self, turn: Turn, reading: list[list[int]]) -> bool:
        """Copy the longest known prefix of a new conversation; False if it must wait for a prompt in `reading`.

        It waits if that prompt shares at least `_MIN_SHARED` tokens more. The last token of its prompt stays unread.
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
        if length < _MIN_SHARED:
            self._skip(turn, 0)
            return True
        assert turn.session.slot is not None
        if source is None:
            self._cache.write(turn.session.slot, self._prefixes.take(key), length)
        else:
            assert source.slot is not None
            self._cache.copy(source.slot, [turn.session.slot], length)
        self._skip(turn, length)
        return True


def _shared(left: list[int], right: list[int], *, more_than: int) -> int:
    """Length of the common prefix, if it is longer than `more_than`; otherwise any number up to `more_than`."""
    if min(len(left), len(right)) <= more_than or left[more_than] != right[more_than]:
        return 0
    return common_prefix_length([np.array(left, np.int32), np.array(right, np.int32)])
