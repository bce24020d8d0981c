"""Serves the turns of many conversations from one model, in one flat batch that never waits for the slowest.

    tick   conversation 1    2        3
    1      reads 9 tokens    reads 9  –             siblings: the prompt is read once and its cache copied
    2      speaks            speaks   reads 14
    3      speaks            hears 12 speaks        a tool answered 2: only the new tokens are read

Each conversation draws from its own random numbers, so what it says does not depend on its neighbours (up to
the last bits of floating-point sums).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.attention import KVCache, SlotBatch
from grpo.policy.transformers.logits_filters import narrow

_QUIET_ROUNDS = 2
"""Event-loop rounds in which no conversation asks for a turn before the next forward pass starts."""
_FIRST_CAPACITY = 512
"""Tokens for which each slot has room at first."""


@dataclass(slots=True)
class _Turn:
    """A turn being spoken."""

    session: SlotSession
    sampling: Sampling
    uniforms: np.ndarray
    unread: list[int]
    future: asyncio.Future[Generation]
    on_token: Callable[[int], None] | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class SlotSession:
    """One conversation's slot in the cache, and how much of it is filled."""

    def __init__(self, sampler: SlotSampler) -> None:
        self._sampler = sampler
        self.slot: int | None = None
        self.read = 0
        self.turns = 0
        self.last: int | None = None
        """The token said last: it is not in the cache until the next turn begins."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`."""
        return await self._sampler.submit(self, prompt, sampling)

    def close(self) -> None:
        """See `Session.close`."""
        self._sampler.release(self)


class SlotSampler:
    """An async context: inside it, conversations may be opened and their turns are served."""

    def __init__(self, model: PreTrainedModel, *, stop_id: int, concurrency: int, max_context: int) -> None:
        config = model.config
        self._model = model
        self._stop_id = stop_id
        self._max_context = max_context
        self._device = model.device
        heads = config.num_attention_heads
        self._cache = KVCache(
            layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", heads) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            slots=concurrency,
            capacity=min(_FIRST_CAPACITY, max_context),
            like=next(model.parameters()),
        )
        self._slots = concurrency
        self._holders: list[SlotSession] = []
        """Who holds slot 0, 1, …: no slot below the last is ever free, so that a pass computes none for nothing."""
        self._waiting: list[_Turn] = []
        self._active: list[_Turn] = []
        self._pump: asyncio.Task[None] | None = None
        self.tokens_processed = 0
        self.tokens_generated = 0

    async def __aenter__(self) -> SlotSampler:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._pump is not None:
            self._pump.cancel()

    def open(self) -> SlotSession:
        """Begin a conversation; it takes a slot when its first turn is admitted."""
        return SlotSession(self)

    def release(self, session: SlotSession) -> None:
        """Free the slot of a finished conversation; the holder of the last slot moves into it."""
        if session.slot is None:
            return
        last = self._holders.pop()
        if last is not session and last.slot is not None:
            self._cache.copy(last.slot, [session.slot], last.read)
            self._holders[session.slot] = last
            last.slot = session.slot
        session.slot = None

    async def submit(self, session: SlotSession, prompt: Prompt, sampling: Sampling) -> Generation:
        """Queue a turn and wait for it."""
        unread = list(prompt.new_ids) if session.last is None else [session.last, *prompt.new_ids]
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        uniforms = sampling.uniforms(session.turns)
        self._waiting.append(_Turn(session, sampling, uniforms, unread, future, prompt.on_token))
        if self._pump is None or self._pump.done():
            # in a context of its own: it serves every conversation, and must not keep the one that asked first
            self._pump = asyncio.create_task(self._run(), context=Context())
        return await future

    async def _run(self) -> None:
        """Forward passes until nobody waits; an error is handed to every conversation that is waiting."""
        try:
            while True:
                await self._settle()
                self._admit()
                if not self._active:
                    return
                with torch.inference_mode():
                    self._tick()
        except BaseException as error:
            for turn in (*self._active, *self._waiting):
                if not turn.future.done():
                    turn.future.set_exception(error)
            self._active.clear()
            self._waiting.clear()
            raise

    async def _settle(self) -> None:
        """Let the conversations that were answered go on until they ask again."""
        quiet, seen = 0, len(self._waiting)
        while quiet < _QUIET_ROUNDS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == seen else 0
            seen = len(self._waiting)

    def _admit(self) -> None:
        """Drop turns that were cut off, and move waiting ones into the batch in order while slots are free."""
        self._active = [turn for turn in self._active if not turn.future.cancelled()]
        waiting: list[_Turn] = []
        for turn in self._waiting:
            if turn.future.cancelled():
                continue
            if turn.session.slot is None:
                if len(self._holders) == self._slots:
                    waiting.append(turn)
                    continue
                turn.session.slot = len(self._holders)
                self._holders.append(turn.session)
            self._active.append(turn)
        self._waiting = waiting

    def _tick(self) -> None:
        """One forward pass over every turn's unread tokens, and one token drawn for each turn."""
        leaders, siblings = _share_prompts(self._active)
        leaders.sort(key=lambda turn: len(turn.unread) > 1)
        batch, ids, ends = self._lay_out(leaders)
        logits = self._model(
            input_ids=ids,
            position_ids=batch.position.unsqueeze(0),
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self._device),
            logits_to_keep=ends,
            use_cache=False,
            slots=batch,
        ).logits[0]
        self.tokens_processed += ids.shape[1]
        rows = list(range(len(leaders)))
        turns = list(leaders)
        for row, turn in enumerate(leaders):
            turn.session.read += len(turn.unread)
            followers = siblings.get(id(turn), [])
            if followers:
                slots = [follower.session.slot for follower in followers]
                self._cache.copy(turn.session.slot, slots, turn.session.read)  # type: ignore[arg-type]
                for follower in followers:
                    follower.session.read = turn.session.read
                    turns.append(follower)
                    rows.append(row)
        self._draw(turns, logits if len(rows) == len(leaders) else logits[torch.tensor(rows, device=self._device)])

    def _lay_out(self, turns: list[_Turn]) -> tuple[SlotBatch, torch.Tensor, torch.Tensor]:
        """Flat token ids, where they belong, and the flat index of each turn's last token."""
        ids: list[int] = []
        slot: list[int] = []
        position: list[int] = []
        ends: list[int] = []
        runs: list[tuple[int, int, int, int]] = []  # slot, flat start, length, first position
        decode_count = 0
        for turn in turns:
            assert turn.session.slot is not None
            count, start = len(turn.unread), turn.session.read
            if count == 1:
                decode_count += 1
            else:
                runs.append((turn.session.slot, len(ids), count, start))
            ids += turn.unread
            slot += [turn.session.slot] * count
            position += range(start, start + count)
            ends.append(len(ids) - 1)
        cache_length, slots_in_use = max(position) + 1, max(slot) + 1
        self._cache.reserve(cache_length)

        def tensor(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, device=self._device)

        columns = torch.arange(cache_length, device=self._device)
        decode_mask = prefill_slots = prefill_index = prefill_mask = prefill_valid = None
        if decode_count:
            last = torch.zeros(slots_in_use, dtype=torch.long, device=self._device)
            last[tensor(slot[:decode_count])] = tensor(position[:decode_count])
            decode_mask = self._mask(columns <= last[:, None])[:, None, None]
        if runs:
            starts, counts, firsts = (tensor([run[k] for run in runs]) for k in (1, 2, 3))
            offsets = torch.arange(max(run[2] for run in runs), device=self._device)
            prefill_slots = tensor([run[0] for run in runs])
            prefill_valid = offsets < counts[:, None]
            prefill_index = torch.where(prefill_valid, starts[:, None] + offsets, starts[:, None])
            prefill_mask = self._mask(columns <= (firsts[:, None] + offsets * prefill_valid)[:, :, None])[:, None]
        batch = SlotBatch(
            cache=self._cache,
            slot=tensor(slot),
            position=tensor(position),
            decode_count=decode_count,
            slots_in_use=slots_in_use,
            cache_length=cache_length,
            decode_mask=decode_mask,
            prefill_slots=prefill_slots,
            prefill_index=prefill_index,
            prefill_mask=prefill_mask,
            prefill_valid=prefill_valid,
        )
        return batch, tensor(ids).unsqueeze(0), tensor(ends)

    def _mask(self, seen: torch.Tensor) -> torch.Tensor:
        """What is added to attention's scores; made once a pass, as PyTorch would make it of booleans in each layer."""
        like = self._cache.keys
        return like.new_zeros(()).where(seen, like.new_full((), -torch.inf))

    def _draw(self, turns: list[_Turn], logits: torch.Tensor) -> None:
        """Draw one token a turn by inverting its cumulative distribution; finished turns leave the batch."""
        temperatures = torch.tensor([turn.sampling.temperature or 1.0 for turn in turns], device=self._device)
        scores = narrow(logits.float() / temperatures[:, None], [turn.sampling for turn in turns])
        logprobs = torch.log_softmax(scores, dim=-1)
        uniforms = torch.tensor([turn.uniforms[len(turn.token_ids)] for turn in turns], device=self._device)
        cumulative = logprobs.double().exp().cumsum(dim=-1)
        targets = uniforms * cumulative[:, -1]
        drawn = torch.searchsorted(cumulative, targets[:, None], right=True).clamp_(max=logits.shape[-1] - 1)
        chosen = logprobs.gather(1, drawn)[:, 0].tolist()
        self._active = []
        for turn, token, logprob in zip(turns, drawn[:, 0].tolist(), chosen, strict=True):
            turn.token_ids.append(token)
            turn.logprobs.append(logprob)
            turn.unread = [token]
            self.tokens_generated += 1
            if turn.on_token is not None:
                turn.on_token(token)
            full = turn.session.read + 1 >= self._max_context
            if token == self._stop_id or len(turn.token_ids) == turn.sampling.max_new_tokens or full:
                turn.session.last = token
                turn.session.turns += 1
                stop = "stop" if token == self._stop_id else "length"
                if not turn.future.cancelled():
                    turn.future.set_result(
                        Generation(
                            token_ids=turn.token_ids,
                            logprobs=turn.logprobs if turn.sampling.unfiltered else None,
                            stop=stop,  # type: ignore[arg-type]
                        )
                    )
            else:
                self._active.append(turn)


def _share_prompts(turns: list[_Turn]) -> tuple[list[_Turn], dict[int, list[_Turn]]]:
    """Of new conversations with the same prompt only the first reads it: leaders, and siblings by leader."""
    leaders: list[_Turn] = []
    siblings: dict[int, list[_Turn]] = {}
    prompts: dict[tuple[int, ...], _Turn] = {}
    for turn in turns:
        if turn.session.read == 0:
            leader = prompts.setdefault(tuple(turn.unread), turn)
            if leader is not turn:
                siblings.setdefault(id(leader), []).append(turn)
                continue
        leaders.append(turn)
    return leaders, siblings
