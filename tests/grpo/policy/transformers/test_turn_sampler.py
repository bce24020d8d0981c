from __future__ import annotations

import asyncio
import copy
import itertools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from grpo.errors import PolicyError
from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling
from grpo.policy.transformers.model import load
from grpo.policy.transformers.sampling.base import TurnSampler, TurnSession
from grpo.policy.transformers.sampling.padded_sampler import PaddedSampler
from grpo.policy.transformers.sampling.serving_sampler import ServingSampler
from grpo.policy.transformers.sampling.slot_sampler import SlotSampler

PROMPTS = [[5, 20, 31, 44], [7, 60], [9, 11, 12, 13, 14, 15, 16, 99, 100], [40, 41, 42]]
TEMPERATURES = (0.0, 5e-324, 1e-300, 1e-46, 1e-45, 3e-38, 2e-38, 9e-6, 1e-5, 1.0, 2.0, 1e300)
TOP_PS = (5e-324, 1e-300, 1e-46, 1e-45, 1e-8, 0.5, math.nextafter(1.0, 0.0), 1.0)
TOP_KS = (0, 1, 2, 2**31 - 1, 10**30)
NAN = 77
"""Token with an embedding that is not a number."""

MakeSampler = Callable[[PreTrainedModel, int], TurnSampler]
SAMPLERS: dict[str, MakeSampler] = {
    "slots": lambda model, most: SlotSampler(model, stop_ids=(), concurrency=most, max_context=256),
    "serving": lambda model, most: ServingSampler(
        model, stop_ids=(), concurrency=most, max_context=256, prefill_chunk=16, prefix_cache_bytes=2**20
    ),
    "padded": lambda model, most: PaddedSampler(model, stop_ids=(), concurrency=most, max_context=256, path="padded"),
}
each_sampler = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> PreTrainedModel:
    return load(tiny_folder).model


@pytest.fixture(scope="module")
def damaged(model: PreTrainedModel) -> PreTrainedModel:
    """The model, with NaN for all texts that have the token `NAN`, and for no others."""
    damaged = copy.deepcopy(model)
    embedding = damaged.get_input_embeddings()
    weight = embedding.weight.detach().clone()
    weight[NAN] = torch.nan
    damaged.set_input_embeddings(nn.Embedding.from_pretrained(weight))
    return damaged


def _sampling(seed: int, **settings: float) -> Sampling:
    return Sampling(**{"temperature": 1.0, "max_new_tokens": 4, "seed": seed, **settings})  # type: ignore[arg-type]


def _play(
    sampler: TurnSampler,
    turns: Sequence[tuple[Sequence[int], Sampling, Callable[[SampledToken], bool | None] | None]],
) -> list[Generation | BaseException]:
    """Turns of conversations of their own, at once; a session is closed after its turn."""

    async def one(ids: Sequence[int], sampling: Sampling, on_token: object) -> Generation:
        session = sampler.open()
        try:
            return await session.generate(Prompt(new_ids=ids, on_token=on_token), sampling)  # type: ignore[arg-type]
        finally:
            session.close()

    async def run() -> list[Generation | BaseException]:
        async with asyncio.timeout(240), sampler:
            return await asyncio.gather(*(one(*turn) for turn in turns), return_exceptions=True)

    return asyncio.run(run())


ORDINARY = [(ids, _sampling(index), None) for index, ids in enumerate(PROMPTS)]


def _tokens(generations: Sequence[Generation | BaseException]) -> list[list[int]]:
    assert all(isinstance(generation, Generation) for generation in generations), generations
    return [generation.token_ids for generation in generations]  # type: ignore[union-attr]


@each_sampler
def test_no_sampling_value_touches_other_turns(model: PreTrainedModel, make: MakeSampler):
    """Every value that `Sampling` accepts is answered, and four ordinary turns have the tokens that they have alone."""
    alone = _tokens(_play(make(model, 8), ORDINARY))
    values = list(itertools.product(TEMPERATURES, TOP_PS, TOP_KS))
    random.Random(0).shuffle(values)
    for first in range(0, 120, 12):
        extreme = [
            (
                PROMPTS[index % 4],
                _sampling(2**64 - 1 - index, temperature=t, top_p=p, top_k=k, top_logprobs=index % 21),
                None,
            )
            for index, (t, p, k) in enumerate(values[first : first + 12])
        ]
        tokens = _tokens(_play(make(model, 16), [*ORDINARY, *extreme]))
        assert tokens[:4] == alone


@pytest.mark.parametrize(
    "settings", [{"temperature": t} for t in TEMPERATURES[:8]] + [{"top_p": p} for p in TOP_PS[:4]]
)
def test_values_below_what_float32_holds_take_the_likeliest_token(model: PreTrainedModel, settings: dict[str, float]):
    """A temperature below 1e-5, or a tiny top_p: greedy, without log-probabilities to train on."""
    (generation,) = _play(SAMPLERS["slots"](model, 1), [(PROMPTS[0], _sampling(3, **settings), None)])
    assert isinstance(generation, Generation)
    assert generation.logprobs is None
    ids = torch.tensor([[*PROMPTS[0], *generation.token_ids]])
    with torch.no_grad():
        likeliest = model(input_ids=ids).logits[0].argmax(dim=-1)[len(PROMPTS[0]) - 1 : -1]
    assert likeliest.tolist() == generation.token_ids


def test_the_least_temperature_has_the_log_probabilities_of_its_distribution(model: PreTrainedModel):
    """At 1e-5 the logits are divided: log-probabilities are finite, and those that the tokens were sampled with."""
    (generation,) = _play(SAMPLERS["slots"](model, 1), [(PROMPTS[0], _sampling(3, temperature=1e-5), None)])
    assert isinstance(generation, Generation)
    ids = torch.tensor([[*PROMPTS[0], *generation.token_ids]])
    with torch.no_grad():
        exact = torch.log_softmax(model(input_ids=ids).logits[0].double() / 1e-5, dim=-1)[len(PROMPTS[0]) - 1 : -1]
    expected = exact[torch.arange(4), torch.tensor(generation.token_ids)].numpy()
    assert np.abs(np.array(generation.logprobs) - expected).max() < 0.5  # float32 logits are exact to 1e-6, times 1e5


@each_sampler
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_p": 0.5}], ids=["full", "greedy", "nucleus"])
def test_logits_that_are_not_finite_fail_their_own_turn(
    damaged: PreTrainedModel, make: MakeSampler, settings: dict[str, float]
):
    """The turn with NaN names the weights and the dtype, and the others have the tokens that they have alone."""
    alone = _tokens(_play(make(damaged, 8), ORDINARY))
    bad = ([5, 20, NAN, 44], _sampling(9, **settings), None)
    *others, failure = _play(make(damaged, 8), [*ORDINARY, bad])
    assert _tokens(others) == alone
    assert isinstance(failure, PolicyError)
    assert "NaN or infinite, because its weights are damaged or its dtype" in str(failure)


@each_sampler
def test_a_conversation_after_one_with_nan_is_exact(damaged: PreTrainedModel, make: MakeSampler):
    """It gets the memory of the one that failed, all of which is read and masked beside a longer conversation."""
    long = (list(range(5, 45)), _sampling(8, max_new_tokens=12), None)
    bad = ([5, 20, NAN, 44, 50, 51, 52, 53, 54], _sampling(9), None)
    alone = _tokens(_play(make(damaged, 2), [long, ORDINARY[1]]))
    first, failure, second = _play(make(damaged, 2), [long, bad, ORDINARY[1]])
    assert isinstance(failure, PolicyError)
    assert _tokens([first, second]) == alone


@each_sampler
def test_conversations_after_two_with_nan_are_exact(damaged: PreTrainedModel, make: MakeSampler):
    """Both fail in one pass: the memory of the second one moves into that of the first, and both are used again."""
    long = (list(range(5, 45)), _sampling(8, max_new_tokens=12), None)
    bad = [([5, 20, NAN, 44, *range(50, 50 + k)], _sampling(9 + k), None) for k in (5, 6)]
    alone = _tokens(_play(make(damaged, 2), [long, ORDINARY[1]]))
    *failures, first, second = _play(make(damaged, 2), [*bad, long, ORDINARY[1]])
    assert [type(failure) for failure in failures] == [PolicyError, PolicyError]
    assert _tokens([first, second]) == alone


@each_sampler
def test_a_device_that_fails_leaves_no_turn_waiting(
    model: PreTrainedModel, make: MakeSampler, monkeypatch: pytest.MonkeyPatch
):
    """After an error of CUDA the memory of a conversation cannot be cleared either; every turn has the first error."""
    sampler = make(model, 2)

    def fail(*_: object) -> None:
        raise RuntimeError("an error of the device")

    monkeypatch.setattr(sampler, "_step", fail)
    monkeypatch.setattr(sampler, "_abandon", fail)
    assert [str(failure) for failure in _play(sampler, ORDINARY)] == ["an error of the device"] * len(ORDINARY)


@each_sampler
def test_an_error_of_a_callback_fails_its_own_turn(model: PreTrainedModel, make: MakeSampler):
    """A callback that raises at the third token, beside four ordinary turns and one with the same tokens."""
    heard: list[int] = []

    def fail(token: SampledToken) -> None:
        heard.append(token.id)
        if len(heard) == 3:
            raise LookupError("a callback of the user")

    alone = _tokens(_play(make(model, 8), ORDINARY))
    failure, *others = _play(make(model, 8), [(PROMPTS[0], _sampling(0), fail), *ORDINARY])
    assert isinstance(failure, LookupError)
    assert heard == alone[0][:3]
    assert _tokens(others) == alone


@each_sampler
@pytest.mark.parametrize("closed", [False, True])
def test_a_fork_goes_on_as_a_conversation_of_its_own_with_the_same_tokens(
    model: PreTrainedModel, make: MakeSampler, closed: bool
):
    """Three forks of a conversation of two turns, two after its first turn and one after its second.

    Each generates the likeliest tokens after its own text, as a new conversation does that reads all tokens at once.
    It does not matter whether the first conversation goes on at the same time, or is closed before.
    """
    first, second, third = [5, 20, 31, 44], [7, 60, 8], [9, 10]
    texts = ([40, 41], [50], [40, 42, 43])

    async def run() -> tuple[list[list[int]], list[list[int]]]:
        async with asyncio.timeout(240), make(model, 8) as sampler:
            session = sampler.open()
            known = [*first, *(await _greedy(session, first))]
            after_one = len(known)
            known += [*second, *(await _greedy(session, second))]
            forks = [session.fork(tokens) for tokens in (after_one, len(known), after_one)]
            prefixes = [known[:after_one], known, known[:after_one]]
            if closed:
                session.close()
            turns = [_greedy(fork, text) for fork, text in zip(forks, texts, strict=True)]
            rest = [] if closed else [_greedy(session, third)]
            generated = await asyncio.gather(*turns, *rest)
            for fork in forks:
                fork.close()
        async with asyncio.timeout(240), make(model, 8) as sampler:
            prompts = [[*prefix, *text] for prefix, text in zip(prefixes, texts, strict=True)]
            prompts += [] if closed else [[*known, *third]]
            alone = await asyncio.gather(*(_greedy(sampler.open(), prompt) for prompt in prompts))
        return generated, alone

    generated, alone = asyncio.run(run())
    assert generated == alone


async def _greedy(session: TurnSession, ids: Sequence[int]) -> list[int]:
    return (await session.generate(Prompt(new_ids=ids), _sampling(0, temperature=0.0))).token_ids
