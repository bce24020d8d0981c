"""Continuous batching: turns of many conversations from one model, in one flat batch without padding.

    step   conversation 1    2           3
    1      prefill 9 tokens  prefill 9   –          siblings: the prompt is prefilled once and its KV cache copied
    2      decode            decode      prefill 14
    3      decode            prefill 12  decode     a tool result for 2: only the new tokens are prefilled

Each conversation has its own random numbers, so its tokens do not depend on the rest of the batch (up to the last bits
of floating-point sums).
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
from grpo.policy.transformers.logits_filters import filter_logits

_IDLE_ROUNDS = 2
"""Event-loop rounds without a new turn before the next forward pass starts."""
_INITIAL_CAPACITY = 512
"""Tokens per slot at the start."""


@dataclass(slots=True)
class _Turn:
    """A turn in progress."""

    session: SlotSession
    sampling: Sampling
    uniforms: np.ndarray
    unread: list[int]
    future: asyncio.Future[Generation]
    on_token: Callable[[int], None] | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class SlotSession:
    """One conversation with its slot in the KV cache."""

    def __init__(self, sampler: SlotSampler) -> None:
        self._sampler = sampler
        self.slot: int | None = None
        self.cached = 0
        """Tokens in the cache."""
        self.turns = 0
        self.last: int | None = None
        """Last generated token, which enters the cache with the next turn."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`."""
        return await self._sampler.submit(self, prompt, sampling)

    def close(self) -> None:
        """See `Session.close`."""
        self._sampler.release(self)


class SlotSampler:
    """Sampler with a slot per conversation; an async context manager."""

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
            capacity=min(_INITIAL_CAPACITY, max_context),
            like=next(model.parameters()),
        )
        self._slots = concurrency
        self._holders: list[SlotSession] = []
        """Sessions by slot; slots stay contiguous, so that a pass computes none that is free."""
        self._waiting: list[_Turn] = []
        self._active: list[_Turn] = []
        self._worker: asyncio.Task[None] | None = None
        self.tokens_processed = 0
        self.tokens_generated = 0

    async def __aenter__(self) -> SlotSampler:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._worker is not None:
            self._worker.cancel()

    def open(self) -> SlotSession:
        """Start a conversation; it gets a slot when its first turn is admitted."""
        return SlotSession(self)

    def release(self, session: SlotSession) -> None:
        """Free the slot of a finished conversation; the session of the last slot moves into it."""
        if session.slot is None:
            return
        last = self._holders.pop()
        if last is not session and last.slot is not None:
            self._cache.copy(last.slot, [session.slot], last.cached)
            self._holders[session.slot] = last
            last.slot = session.slot
        session.slot = None

    async def submit(self, session: SlotSession, prompt: Prompt, sampling: Sampling) -> Generation:
        """Queue a turn and await it."""
        unread = list(prompt.new_ids) if session.last is None else [session.last, *prompt.new_ids]
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        uniforms = sampling.uniforms(session.turns)
        self._waiting.append(_Turn(session, sampling, uniforms, unread, future, prompt.on_token))
        if self._worker is None or self._worker.done():
            # an empty context: the task serves all conversations and must not inherit the first caller's variables
            self._worker = asyncio.create_task(self._run(), context=Context())
        return await future

    async def _run(self) -> None:
        """Run forward passes until no turn is left; an error is raised in every waiting conversation."""
        try:
            while True:
                await self._wait_until_idle()
                self._admit()
                if not self._active:
                    return
                with torch.inference_mode():
                    self._step()
        except BaseException as error:
            for turn in (*self._active, *self._waiting):
                if not turn.future.done():
                    turn.future.set_exception(error)
            self._active.clear()
            self._waiting.clear()
            raise

    async def _wait_until_idle(self) -> None:
        """Let finished turns' conversations continue until they submit their next turns."""
        idle_rounds, waiting = 0, len(self._waiting)
        while idle_rounds < _IDLE_ROUNDS:
            await asyncio.sleep(0)
            idle_rounds = idle_rounds + 1 if len(self._waiting) == waiting else 0
            waiting = len(self._waiting)

    def _admit(self) -> None:
        """Drop cancelled turns, and admit waiting ones in order while slots are free."""
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

    def _step(self) -> None:
        """Run one forward pass over the unread tokens of all turns, and sample one token for each turn."""
        leaders, siblings = _deduplicate_prompts(self._active)
        leaders.sort(key=lambda turn: len(turn.unread) > 1)
        batch, ids, ends = self._build_batch(leaders)
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
            turn.session.cached += len(turn.unread)
            followers = siblings.get(id(turn), [])
            if followers:
                slots = [follower.session.slot for follower in followers]
                self._cache.copy(turn.session.slot, slots, turn.session.cached)  # type: ignore[arg-type]
                for follower in followers:
                    follower.session.cached = turn.session.cached
                    turns.append(follower)
                    rows.append(row)
        self._sample(turns, logits if len(rows) == len(leaders) else logits[torch.tensor(rows, device=self._device)])

    def _build_batch(self, turns: list[_Turn]) -> tuple[SlotBatch, torch.Tensor, torch.Tensor]:
        """Build the batch layout, flat token ids, and the flat index of each turn's last token."""
        ids: list[int] = []
        slot: list[int] = []
        position: list[int] = []
        ends: list[int] = []
        runs: list[tuple[int, int, int, int]] = []  # slot, flat start, length, first position
        decode_count = 0
        for turn in turns:
            assert turn.session.slot is not None
            count, start = len(turn.unread), turn.session.cached
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

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Additive attention mask, made once a pass; from booleans PyTorch would make it in each layer."""
        like = self._cache.keys
        return like.new_zeros(()).where(visible, like.new_full((), -torch.inf))

    def _sample(self, turns: list[_Turn], logits: torch.Tensor) -> None:
        """Sample one token a turn by inverse transform; finished turns leave the batch."""
        temperatures = torch.tensor([turn.sampling.temperature or 1.0 for turn in turns], device=self._device)
        scores = filter_logits(logits.float() / temperatures[:, None], [turn.sampling for turn in turns])
        logprobs = torch.log_softmax(scores, dim=-1)
        uniforms = torch.tensor([turn.uniforms[len(turn.token_ids)] for turn in turns], device=self._device)
        cumulative = logprobs.double().exp().cumsum(dim=-1)
        targets = uniforms * cumulative[:, -1]
        sampled = torch.searchsorted(cumulative, targets[:, None], right=True).clamp_(max=logits.shape[-1] - 1)
        token_logprobs = logprobs.gather(1, sampled)[:, 0].tolist()
        self._active = []
        for turn, token, logprob in zip(turns, sampled[:, 0].tolist(), token_logprobs, strict=True):
            turn.token_ids.append(token)
            turn.logprobs.append(logprob)
            turn.unread = [token]
            self.tokens_generated += 1
            if turn.on_token is not None:
                turn.on_token(token)
            context_full = turn.session.cached + 1 >= self._max_context
            if token == self._stop_id or len(turn.token_ids) == turn.sampling.max_new_tokens or context_full:
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


def _deduplicate_prompts(turns: list[_Turn]) -> tuple[list[_Turn], dict[int, list[_Turn]]]:
    """Select one leader of the new conversations with the same prompt; returns leaders, and siblings by leader id."""
    leaders: list[_Turn] = []
    siblings: dict[int, list[_Turn]] = {}
    prompts: dict[tuple[int, ...], _Turn] = {}
    for turn in turns:
        if turn.session.cached == 0:
            leader = prompts.setdefault(tuple(turn.unread), turn)
            if leader is not turn:
                siblings.setdefault(id(leader), []).append(turn)
                continue
        leaders.append(turn)
    return leaders, siblings
