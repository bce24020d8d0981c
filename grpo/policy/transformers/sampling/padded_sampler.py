"""Batches of whole turns with the model's own forward pass, masks and cache, padded on the left.

    batch 1   conversations 1 2 3     prefill, decode until each turn has ended
    batch 2   conversations 2 1       their next turns: the whole conversation is prefilled again

This path is for models with layers that keep a state that no other code can lay out: linear attention, convolutions,
Mamba, ALiBi. If a model's padding is not exact, a batch has only conversations of one length. If its cache is not exact
either, the whole conversations are processed again for each token.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import torch
from transformers import Cache, GenerationConfig, PreTrainedModel

from grpo.policy.transformers.forward.head import base_model, language_model_head
from grpo.policy.transformers.sampling.base import Turn, TurnSampler, TurnSession, pending

_PAD = 0
"""Token id of padding. The mask hides it from all layers."""


class PaddedSampler(TurnSampler):
    """Sampler that runs one batch of turns after another, for any causal language model."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_ids: Collection[int],
        concurrency: int,
        max_context: int,
        path: Literal["padded", "unpadded", "uncached"],
        policy_hash: str = "",
    ) -> None:
        super().__init__(
            model, stop_ids=stop_ids, concurrency=concurrency, max_context=max_context, policy_hash=policy_hash
        )
        self._path = path
        self._rows: list[Turn] = []
        """Turns of the batch in progress."""
        self._ids = torch.empty(0, 0, dtype=torch.long)  # [rows, tokens]
        self._state: dict[str, Any] = {}
        """Keyword arguments of the next forward pass: mask, positions and cache."""

    def release(self, session: TurnSession) -> None:
        """Free nothing, because a conversation keeps no state between its turns."""

    def _forget_passes(self) -> None:
        """See `TurnSampler`. The turns in progress become a new batch, which begins with their whole conversations."""
        self._rows, self._state = [], {}

    def _admit(self) -> None:
        """See `TurnSampler`. Waiting turns are admitted only when the batch in progress has ended."""
        self._active, self._waiting = pending(self._active), pending(self._waiting)
        if not self._active:
            lengths = [turn.session.length + len(turn.unread) for turn in self._waiting]
            fitting = [self._path == "padded" or length == lengths[0] for length in lengths]
            admitted = [turn for turn, fits in zip(self._waiting, fitting, strict=True) if fits][: self._concurrency]
            self._rows = []
            for turn in admitted:
                self._activate(turn)
            self._waiting = [turn for turn in self._waiting if turn not in admitted]

    def _step(self) -> None:
        """See `TurnSampler`."""
        is_first = not self._rows
        if is_first:
            self._begin()
        else:
            self._drop_finished()
            last = [turn.token_ids[-1] if turn.token_ids else _PAD for turn in self._rows]  # empty if its first failed
            self._ids = torch.cat([self._ids, torch.tensor(last, device=self._device)[:, None]], dim=1)
        logits = self._uncached_logits() if self._path == "uncached" else self._cached_logits(is_first=is_first)
        active = {id(turn) for turn in self._active}
        rows = [row for row, turn in enumerate(self._rows) if id(turn) in active]
        self._sample([self._rows[row] for row in rows], rows, logits)

    def _cached_logits(self, *, is_first: bool) -> torch.Tensor:
        """Logits after the last token of each row, [rows, vocabulary]."""
        inputs = self._model.prepare_inputs_for_generation(
            self._ids, next_sequence_length=None if is_first else 1, is_first_iteration=is_first, **self._state
        )
        self.tokens_processed += inputs["input_ids"].numel()
        outputs = self._model(**inputs, return_dict=True)
        self._state = self._model._update_model_kwargs_for_generation(outputs, self._state)
        logits: torch.Tensor = outputs.logits[:, -1]
        return logits

    def _uncached_logits(self) -> torch.Tensor:
        self.tokens_processed += self._ids.numel()
        states = base_model(self._model)(input_ids=self._ids, use_cache=False).last_hidden_state[:, -1]
        return language_model_head(self._model)(states)

    def _begin(self) -> None:
        """Lay out the whole conversations of a new batch. transformers makes masks, positions and cache."""
        self._rows = list(self._active)
        conversations = [turn.session.history + turn.unread for turn in self._rows]
        longest = max(map(len, conversations))
        padding = [longest - len(ids) for ids in conversations]
        rows = [[_PAD] * pad + ids for pad, ids in zip(padding, conversations, strict=True)]
        self._ids = torch.tensor(rows, device=self._device)
        columns = torch.arange(longest, device=self._device)
        mask = (columns >= torch.tensor(padding, device=self._device)[:, None]).long()
        if self._path == "uncached":
            return
        settings = GenerationConfig(
            max_new_tokens=max(turn.sampling.max_new_tokens for turn in self._rows),
            do_sample=True,
            use_cache=True,
            cache_implementation="dynamic",
            pad_token_id=_PAD,
        )
        self._state = self._model.generate(
            self._ids, attention_mask=mask, generation_config=settings, custom_generate=_prepared_state
        )

    def _drop_finished(self) -> None:
        """Drop the rows of finished turns when they are at least half of the batch."""
        active = {id(turn) for turn in self._active}
        rows = [row for row, turn in enumerate(self._rows) if id(turn) in active]
        caches = [value for value in self._state.values() if isinstance(value, Cache)]
        is_selectable = caches or self._path == "uncached"
        if 2 * len(rows) > len(self._rows) or not is_selectable:
            return
        kept = torch.tensor(rows, device=self._device)
        for cache in caches:
            cache.reorder_cache(kept)
        for name, value in self._state.items():
            if not isinstance(value, torch.Tensor):
                continue
            axis = 1 if name == "position_ids" and value.dim() == 3 else 0  # [axes of an image, rows, tokens]
            if value.shape[axis] == len(self._rows):
                self._state[name] = value.index_select(axis, kept)
        base = base_model(self._model)
        offsets = getattr(base, "rope_deltas", None)
        if isinstance(offsets, torch.Tensor):  # a state of the batch that Qwen's wrappers keep in the model
            base.rope_deltas = offsets[kept]
        self._ids, self._rows = self._ids[kept], [self._rows[row] for row in rows]


def _prepared_state(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    **state: Any,
) -> dict[str, Any]:
    """Decoding loop for `generate` that only returns the keyword arguments prepared for the first pass."""
    del model, input_ids, logits_processor, stopping_criteria, generation_config
    return state
