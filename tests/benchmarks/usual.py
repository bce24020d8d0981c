"""The usual ways to sample the turns of a conversation, behind the same protocol as our own policy.

Both read the whole conversation again at each turn. With `generate`, all conversations that wait for a turn are
padded on the left and speak until the last of them has stopped; with continuous batching each speaks at its own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.generation import ContinuousBatchingConfig

from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.renderers.chat_template import Renderer

_QUIET_ROUNDS = 3
"""Event-loop rounds in which no conversation asks for a turn before the next batch is generated."""


class _Session:
    """A conversation whose every turn begins from its whole history."""

    def __init__(self, sampler: _Generate | _Continuous) -> None:
        self._sampler = sampler
        self._ids: list[int] = []

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        self._ids += prompt.new_ids
        said = await self._sampler.speak(list(self._ids), sampling)
        self._ids += said.token_ids
        return said

    def close(self) -> None:
        """Nothing is kept between turns."""


def _generation_config(sampling: Sampling, stop_id: int) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=stop_id,
        pad_token_id=stop_id,
    )


def _generation(token_ids: list[int], logprobs: list[float], stop_id: int) -> Generation:
    return Generation(token_ids=token_ids, logprobs=logprobs, stop="stop" if token_ids[-1] == stop_id else "length")


@dataclass(frozen=True)
class GeneratePolicy:
    """Left-padded `generate` over all conversations that wait, at most `rows` at once."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    rows: int
    hash: str = "generate"

    @property
    def max_context(self) -> int:
        return int(self.model.config.max_position_embeddings)

    def sampler(self, *, concurrency: int, renderer: Renderer) -> AbstractAsyncContextManager[_Generate]:
        return _Generate(self.model, renderer.stop_id, self.rows)


class _Generate:
    def __init__(self, model: PreTrainedModel, stop_id: int, rows: int) -> None:
        self._model, self._stop_id, self._rows = model, stop_id, rows
        self._waiting: list[tuple[list[int], Sampling, asyncio.Future[Generation]]] = []
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _Generate:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """No request is waiting."""

    def open(self) -> _Session:
        return _Session(self)

    async def speak(self, ids: list[int], sampling: Sampling) -> Generation:
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append((ids, sampling, future))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while True:
            quiet, seen = 0, len(self._waiting)
            while quiet < _QUIET_ROUNDS:
                await asyncio.sleep(0)
                quiet, seen = (quiet + 1 if len(self._waiting) == seen else 0), len(self._waiting)
            if not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
            for start in range(0, len(waiting), self._rows):
                part = waiting[start : start + self._rows]
                said = self._generate([ids for ids, _, _ in part], [sampling for _, sampling, _ in part])
                for (_, _, future), generation in zip(part, said, strict=True):
                    future.set_result(generation)

    @torch.no_grad()
    def _generate(self, prompts: Sequence[list[int]], samplings: Sequence[Sampling]) -> list[Generation]:
        width = max(map(len, prompts))
        padded = [[self._stop_id] * (width - len(ids)) + ids for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        longest = max(samplings, key=lambda sampling: sampling.max_new_tokens)
        record = _Logprobs(longest.temperature)
        device = self._model.device
        sequences: torch.Tensor = self._model.generate(
            input_ids=torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=_generation_config(longest, self._stop_id),
            logits_processor=LogitsProcessorList([record]),
        )
        rows = zip(sequences[:, width:].tolist(), record.read(sequences).tolist(), samplings, strict=True)
        generations = []
        for ids, logprobs, sampling in rows:
            ids = ids[: sampling.max_new_tokens]
            length = ids.index(self._stop_id) + 1 if self._stop_id in ids else len(ids)
            generations.append(_generation(ids[:length], logprobs[:length], self._stop_id))
        return generations


class _Logprobs(LogitsProcessor):
    """Notes how likely each drawn token was, once it is seen to be drawn; holds one step's distribution."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._drawn: list[torch.Tensor] = []
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._note(input_ids)
        self._last = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        return scores

    def _note(self, input_ids: torch.Tensor) -> None:
        if self._last is not None:
            self._drawn.append(self._last.gather(1, input_ids[:, -1:]))

    def read(self, sequences: torch.Tensor) -> torch.Tensor:
        """[rows, new tokens], given the finished sequences."""
        self._note(sequences)
        return torch.cat(self._drawn, dim=1)


@dataclass(frozen=True)
class ContinuousPolicy:
    """transformers' continuous batching; each turn is a request of its own, sent as soon as its turn comes."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    settings: ContinuousBatchingConfig
    sampling: Sampling
    hash: str = "continuous batching"

    @property
    def max_context(self) -> int:
        return int(self.model.config.max_position_embeddings)

    def sampler(self, *, concurrency: int, renderer: Renderer) -> AbstractAsyncContextManager[_Continuous]:
        config = _generation_config(self.sampling, renderer.stop_id)
        manager = self.model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=self.settings
        )
        return _Continuous(manager, renderer.stop_id)


class _Continuous:
    def __init__(self, context: AbstractContextManager[Any], stop_id: int) -> None:
        self._context, self._stop_id = context, stop_id
        self._count = 0

    async def __aenter__(self) -> _Continuous:
        self._manager = self._context.__enter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._context.__exit__(None, None, None)

    def open(self) -> _Session:
        return _Session(self)

    async def speak(self, ids: list[int], sampling: Sampling) -> Generation:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._count += 1
        name = f"turn-{self._count}"
        self._manager.register_result_handler(name, future.set_result)
        self._manager.add_request(ids, request_id=name, max_new_tokens=sampling.max_new_tokens)
        answer = await future
        if answer.error is not None:
            raise RuntimeError(f"continuous batching failed {name}: {answer.error}")
        return _generation(answer.generated_tokens, answer.logprobs, self._stop_id)
