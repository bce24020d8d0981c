"""Continuous batching: turns of many conversations from one model, in one flat batch without padding.

step   conversation 1    2               3
1      prefill 9 tokens  follows 1       –            siblings: the same prompt is prefilled once
2      decode            follows 1       prefill 14
3      decode            copies 1's KV,  decode       2 has sampled another token than 1
                         decodes
4      decode            prefill 12      decode       a tool result for 2: only the new tokens are prefilled

Conversations with the same tokens are computed once per pass. A follower gets its own slot only when its tokens differ.
If all new conversations share a prefix, e.g. the system prompt, it is prefilled once and copied. If the shared prefix
is long, e.g. because it lists many tools, it is held once, and a pass reads it for many conversations at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from grpo.policy.transformers.forward.attention import SlotBatch
from grpo.policy.transformers.forward.kv_cache import KVCache
from grpo.policy.transformers.forward.packing import common_prefix_length
from grpo.policy.transformers.sampling.base import Turn, TurnSampler, TurnSession, pending

_INITIAL_CAPACITY = 512
"""Tokens per slot at the start."""
_MIN_SAVED = 256
"""Fewest tokens that sharing a prefix must save, because it may take an extra pass."""
MIN_SHARED_PREFIX = 512
"""Fewest tokens of a prefix that is held once for all conversations instead of copied."""
_PASS_TOKENS = 2048
"""Maximum number of tokens in a forward pass. A longer turn is read in several passes. With 23,000 tokens a CPU takes
twice the time per token, because the states of a layer do not fit into its caches, and because masks grow with the
square of a prompt's length."""


class SlotSampler(TurnSampler):
    """Sampler with a slot of the KV cache for each distinct conversation, for a model with flat attention."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_ids: Collection[int],
        concurrency: int,
        max_context: int,
        min_shared_prefix: int = MIN_SHARED_PREFIX,
        policy_hash: str = "",
    ) -> None:
        super().__init__(
            model, stop_ids=stop_ids, concurrency=concurrency, max_context=max_context, policy_hash=policy_hash
        )
        self._slots = concurrency
        self._min_shared_prefix = min_shared_prefix
        self._prefix = np.zeros(0, dtype=np.int32)
        """Tokens that the cache holds once, because all conversations begin with them."""
        self._cache = self._empty_cache()
        self._holders: list[TurnSession] = []
        """Sessions by slot. Slots stay contiguous, so that a pass computes no free slot."""
        self._followers: dict[TurnSession, TurnSession | None] = {}
        """Sessions without a slot, each with the session that holds its history; None before its first pass."""
        self._idle_forks: set[TurnSession] = set()
        """Followers that have not begun a turn. They need no slot before, so that they keep none from others."""

    def share(self, session: TurnSession, fork: TurnSession) -> None:
        """Let a fork follow the conversation that holds its tokens. It takes no slot before its next turn."""
        holder = session if session.slot is not None else self._followers.get(session)
        if holder is None:  # e.g. because the session was closed
            super().share(session, fork)
        else:
            self._followers[fork] = holder
            self._idle_forks.add(fork)

    def release(self, session: TurnSession) -> None:
        """Free the slot of a finished conversation.

        If the session has followers, the longest one takes the slot. Otherwise the session in the last slot moves into
        it.
        """
        if session.slot is None:
            self._followers.pop(session, None)
            self._idle_forks.discard(session)
            return
        followers = [follower for follower, leader in self._followers.items() if leader is session]
        if followers:
            successor = max(followers, key=lambda follower: follower.length)
            del self._followers[successor]
            self._idle_forks.discard(successor)
            successor.slot, session.slot = session.slot, None
            self._holders[successor.slot] = successor
            self._followers.update((follower, successor) for follower in followers if follower is not successor)
            return
        last = self._holders[-1]
        if last is not session and last.slot is not None:
            self._cache.copy(last.slot, [session.slot], last.length)  # if it fails, the slots are as before
            self._holders[session.slot] = last
            last.slot = session.slot
        self._holders.pop()
        session.slot = None

    def _abandon(self, session: TurnSession) -> None:
        """See `TurnSampler`. An idle follower takes the slot, because it has read nothing of the failed pass."""
        slots = set() if session.slot is None else {session.slot, len(self._holders) - 1}  # the last one may move
        SlotSampler.release(self, session)  # a subclass's `release` may keep the slot for the next turn
        for slot in slots:
            self._cache.clear(slot, self._holders[slot].length if slot < len(self._holders) else 0)
        super()._abandon(session)

    def _empty_cache(self) -> KVCache:
        return KVCache(slots=self._slots, capacity=min(_INITIAL_CAPACITY, self._max_context))

    def _forget_passes(self) -> None:
        """See `TurnSampler`. Conversations keep their reservations, as before their first pass."""
        sessions = [*self._holders, *self._followers]
        turns = {turn.session: turn for turn in (*self._active, *self._waiting)}
        for session in sessions:
            tokens, session.history, session.slot = session.history, [], None
            if (turn := turns.get(session)) is None:
                session.unread += tokens
            else:
                turn.unread = [*tokens, *turn.unread]
        self._holders, self._followers = [], dict.fromkeys(sessions)
        self._prefix = np.zeros(0, dtype=np.int32)
        self._cache = self._empty_cache()

    def _admit(self) -> None:
        """See `TurnSampler`. Turns are admitted in order while slots are free."""
        self._active = pending(self._active)
        waiting: list[Turn] = []
        for turn in pending(self._waiting):
            if turn.session.slot is None and turn.session not in self._followers and not self._take_slot(turn):
                waiting.append(turn)
            else:
                self._idle_forks.discard(turn.session)
                self._activate(turn)
        self._waiting = waiting

    def _take_slot(self, turn: Turn) -> bool:
        """Reserve a slot for a new conversation until it needs it; return False if no slot is free."""
        if len(self._holders) + len(self._followers) - len(self._idle_forks) >= self._concurrency:
            return False
        self._followers[turn.session] = None
        return True

    def _append_slot(self, session: TurnSession) -> None:
        session.slot = len(self._holders)
        self._holders.append(session)

    def _step(self) -> None:
        """See `TurnSampler`."""
        groups = self._equal_turns()
        leaders = [self._lead(group) for group in groups]
        self._share_prefix([turn for turn in leaders if turn.session.length == 0])
        order = sorted(range(len(groups)), key=lambda index: len(leaders[index].unread) > 1)
        logits = self._forward([leaders[index] for index in order], self._cache)
        rows = [row for row, index in enumerate(order) for _ in groups[index]]
        self._sample([turn for index in order for turn in groups[index]], rows, logits)

    def _equal_turns(self) -> list[list[Turn]]:
        """The active turns, grouped by equal tokens, both read and unread.

        If two sessions have the same length and their histories lie in one slot, then their histories are equal.
        """
        groups: dict[tuple[int, int, tuple[int, ...]], list[Turn]] = {}
        for turn in self._active:
            session = turn.session
            holder = self._followers[session] if session.slot is None else session
            groups.setdefault((id(holder), session.length, tuple(turn.unread)), []).append(turn)
        return list(groups.values())

    def _lead(self, group: list[Turn]) -> Turn:
        """Choose the turn of a group to compute. A turn without a slot gets one, and the other turns follow it."""
        leader = next((turn for turn in group if turn.session.slot is not None), group[0])
        session = leader.session
        if session.slot is None:
            former = self._followers.pop(session)
            self._append_slot(session)
            if former is not None:
                self._cache.copy(former.slot, [session.slot], session.length)  # type: ignore[arg-type,list-item]
        self._followers.update((turn.session, session) for turn in group if turn is not leader)
        return leader

    def _share_prefix(self, turns: list[Turn]) -> None:
        """Let new conversations begin with what another has read. The last token of a prompt stays unread.

        If the prefix that all share is long, it is held once. If copying the rest of the shared prefix saves enough
        tokens, it is copied from a conversation in progress, or else from the first of the new ones.
        """
        if not turns:
            return
        unread = [turn.unread for turn in turns]
        prompts = [np.array(tokens[:-1], np.int32) for tokens in unread]
        source = next((session for session in self._holders if session.length), None)

        def begin(shared: int) -> None:
            for turn, tokens in zip(turns, unread, strict=True):
                turn.session.history, turn.unread = tokens[:shared], tokens[shared:]

        held = self._hold_prefix(turns[0], prompts, in_progress=source is not None)
        begin(held)
        shared = common_prefix_length(prompts if source is None else [*prompts, np.array(source.history, np.int32)])
        others = turns[1:] if source is None else turns
        if (shared - held) * len(others) < _MIN_SAVED:
            return
        if source is None:
            source = turns[0].session
            self._forward([replace(turns[0], unread=unread[0][held:shared])], self._cache)
        assert source.slot is not None
        self._cache.copy(source.slot, [turn.session.slot for turn in others if turn.session.slot is not None], shared)
        begin(shared)

    def _hold_prefix(self, first: Turn, prompts: list[NDArray[np.int32]], *, in_progress: bool) -> int:
        """Hold a long prefix of the prompts once, and return its length.

        While other conversations are in progress, the held prefix can only be shortened to what they and the prompts
        share. A single prompt is held as well, because later conversations may begin like it.
        """
        shared, held = common_prefix_length(prompts), common_prefix_length([self._prefix, *prompts])
        if self._concurrency > 1 and not in_progress and shared - held >= self._min_shared_prefix:
            reader = TurnSession(self)
            reader.slot = 0
            cache = KVCache(slots=1, capacity=shared)
            self._forward([replace(first, session=reader, unread=prompts[0][:shared].tolist())], cache)
            self._cache.share(cache.read(0, shared), shared)
            self._prefix = prompts[0][:shared]
            return shared
        if held < len(self._prefix):
            held = held if held >= self._min_shared_prefix else 0
            self._cache.unshare(held, [session.length for session in self._holders])
            self._prefix = self._prefix[:held]
        return held

    def _forward(self, turns: list[Turn], cache: KVCache) -> torch.Tensor:
        """Read the unread tokens of turns into a cache, and return the logits after each turn, [turns, vocabulary]."""
        passes: list[list[Turn]] = []
        room = 0
        for turn in turns:
            self._read_long(turn, cache)
            if not passes or len(turn.unread) > room:
                passes.append([])
                room = _PASS_TOKENS
            passes[-1].append(turn)
            room -= len(turn.unread)
        logits = [self._pass(part, cache) for part in passes]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _read_long(self, turn: Turn, cache: KVCache) -> None:
        """Read a long turn in separate passes until the rest fits into one pass."""
        while len(turn.unread) > _PASS_TOKENS:
            piece, rest = turn.unread[:_PASS_TOKENS], turn.unread[_PASS_TOKENS:]
            turn.unread = piece
            self._pass([turn], cache)
            turn.session.history += piece
            turn.unread = rest

    def _pass(self, turns: list[Turn], cache: KVCache) -> torch.Tensor:
        """Run one forward pass over the unread tokens of turns; see `_forward`."""
        batch, ids, ends = self._build_batch(turns, cache)
        logits: torch.Tensor = self._model(
            input_ids=ids,
            position_ids=batch.position.unsqueeze(0),
            attention_mask=torch.ones_like(ids, dtype=torch.bool),
            logits_to_keep=ends,
            use_cache=False,
            slots=batch,
        ).logits[0]
        self.tokens_processed += ids.shape[1]
        return logits

    def _build_batch(self, turns: list[Turn], cache: KVCache) -> tuple[SlotBatch, torch.Tensor, torch.Tensor]:
        """Build the batch layout, flat token ids, and the flat index of each turn's last token."""
        ids: list[int] = []
        slot: list[int] = []
        position: list[int] = []
        ends: list[int] = []
        runs: list[tuple[int, int, int, int]] = []  # slot, flat start, length, first position
        decode_count = 0
        for turn in turns:
            assert turn.session.slot is not None
            count, start = len(turn.unread), turn.session.length
            if count == 1 and not runs:  # the last token of a long turn may come after a run
                decode_count += 1
            else:
                runs.append((turn.session.slot, len(ids), count, start))
            ids += turn.unread
            slot += [turn.session.slot] * count
            position += range(start, start + count)
            ends.append(len(ids) - 1)
        cache_length, slots_in_use = max(position) + 1, max(slot) + 1
        cache.reserve(cache_length)

        def tensor(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, device=self._device)

        decode_positions = torch.zeros(slots_in_use, dtype=torch.long, device=self._device)
        if decode_count:
            decode_positions[tensor(slot[:decode_count])] = tensor(position[:decode_count])
        prefill_slots = prefill_index = prefill_positions = prefill_valid = None
        if runs:
            starts, counts, firsts = (tensor([run[k] for run in runs]) for k in (1, 2, 3))
            offsets = torch.arange(max(run[2] for run in runs), device=self._device)
            prefill_slots = tensor([run[0] for run in runs])
            prefill_valid = offsets < counts[:, None]
            prefill_index = torch.where(prefill_valid, starts[:, None] + offsets, starts[:, None])
            prefill_positions = firsts[:, None] + offsets * prefill_valid
        batch = SlotBatch(
            cache=cache,
            slot=tensor(slot),
            position=tensor(position),
            decode_count=decode_count,
            slots_in_use=slots_in_use,
            cache_length=cache_length,
            decode_positions=decode_positions[:, None],
            prefill_slots=prefill_slots,
            prefill_index=prefill_index,
            prefill_positions=prefill_positions,
            prefill_valid=prefill_valid,
        )
        return batch, tensor(ids).unsqueeze(0), tensor(ends)
