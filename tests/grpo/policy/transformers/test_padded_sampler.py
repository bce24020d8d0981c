from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.exactness import choose_path
from grpo.policy.transformers.sampling.catalog import make_sampler, make_serving_sampler
from grpo.policy.transformers.sampling.padded_sampler import PaddedSampler
from tests.models.families import tiny_model

Path = Literal["padded", "unpadded", "uncached"]
PROMPTS = ([5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [20, 21, 22])


def _model(family: str = "mamba2") -> PreTrainedModel:
    model = tiny_model(family)
    choose_path(model, "0")
    return model


def _sampler(
    model: PreTrainedModel, path: Path = "padded", *, stop: Sequence[int] = (), most: int = 8
) -> PaddedSampler:
    return PaddedSampler(model, stop_ids=stop, concurrency=most, max_context=512, path=path)


async def _turn(session, ids: list[int], *, seed: int, tokens: int) -> Generation:  # type: ignore[no-untyped-def]
    return await session.generate(Prompt(new_ids=ids), Sampling(temperature=1.0, max_new_tokens=tokens, seed=seed))


async def _two_turns(sampler: PaddedSampler, index: int) -> list[Generation]:
    """The first turn has 2, 4 or 6 tokens, the second 3."""
    session = sampler.open()
    first = await _turn(session, PROMPTS[index], seed=index, tokens=2 + 2 * index)
    second = await _turn(session, [30 + index, 31], seed=index, tokens=3)
    session.close()
    return [first, second]


def _run(sampler: PaddedSampler, indices: Sequence[int]) -> list[list[Generation]]:
    async def run() -> list[list[Generation]]:
        async with sampler:
            return list(await asyncio.gather(*(_two_turns(sampler, index) for index in indices)))

    return asyncio.run(run())


@pytest.mark.parametrize(("family", "path"), [("mamba2", "padded"), ("lfm2", "padded"), ("rwkv", "uncached")])
def test_a_conversation_does_not_depend_on_its_batch(family: str, path: Path):
    """Three conversations of different lengths together, and each alone: the same tokens."""
    model = _model(family)
    together = _run(_sampler(model, path), (0, 1, 2))
    for index in range(3):
        (alone,) = _run(_sampler(model, path), (index,))
        for one, other in zip(together[index], alone, strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_batch_without_padding_has_one_length():
    """Prompts of 5, 5 and 3 tokens: two batches, then the second turns, of 5 + 2 + 2 and twice 11 tokens."""
    model = _model()
    prefills: list[tuple[int, ...]] = []

    def watch(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, torch.Tensor]) -> None:
        if kwargs["input_ids"].shape[1] > 1:
            prefills.append(tuple(kwargs["input_ids"].shape))
            assert kwargs.get("attention_mask", torch.ones(1)).all()

    handle = model.register_forward_pre_hook(watch, with_kwargs=True)
    _run(_sampler(model, "unpadded"), (0, 1, 2))
    handle.remove()
    assert sorted(prefills) == [(1, 3), (1, 9), (2, 5), (2, 11)]


@pytest.mark.parametrize(
    ("family", "path", "lengths", "processed"),
    [
        ("mamba2", "padded", (1, 1, 4), 3 * 5 + 3),
        ("mamba2", "padded", (1, 1, 4, 4), 4 * 5 + 3 * 2),
        ("rwkv", "uncached", (1, 1, 4), 3 * 5 + 6 + 7 + 8),
    ],
)
def test_finished_rows_leave_the_batch_when_they_are_half_of_it(
    family: str, path: Path, lengths: tuple[int, ...], processed: int
):
    """E.g. turns of 1, 1 and 4 tokens: a prefill of 3 rows, then 3 steps of the row that is left.

    Without a cache each step reads the whole row.
    """
    sampler = _sampler(_model(family), path)

    async def run() -> None:
        async with sampler:
            await asyncio.gather(*(_turn(sampler.open(), PROMPTS[0], seed=k, tokens=n) for k, n in enumerate(lengths)))

    asyncio.run(run())
    assert sampler.tokens_processed == processed
    assert sampler.tokens_generated == sum(lengths)


def test_turns_that_are_submitted_one_after_the_other_begin_in_one_batch():
    """Each two rounds of the event loop after the one before, and as many idle rounds end the waiting."""
    sampler = _sampler(_model())
    admitted: list[int] = []
    sampler.on_pass = lambda: admitted.append(sampler.turns_admitted)

    async def late(rounds: int) -> None:
        for _ in range(2 * rounds):
            await asyncio.sleep(0)
        await _turn(sampler.open(), PROMPTS[0], seed=rounds, tokens=1)

    async def run() -> None:
        async with sampler:
            await asyncio.gather(*map(late, range(6)))

    asyncio.run(run())
    assert admitted == [6]


def test_a_sampler_of_the_catalog_has_the_path_of_its_model_and_names_the_policy():
    """Both samplers, that of rollouts and that of a server."""
    model = _model("rwkv")
    rollouts = make_sampler(model, stop_ids=(), concurrency=2, max_context=64, policy_hash="p1")
    serving = make_serving_sampler(
        model, stop_ids=(), concurrency=2, max_context=64, prefill_chunk=8, prefix_cache_bytes=0
    )
    for sampler, policy_hash in ((rollouts, "p1"), (serving, "")):
        session = sampler.open()
        asyncio.run(_turn(session, PROMPTS[0], seed=1, tokens=3))
        assert sampler.tokens_processed == 5 + 6 + 7, "the path of rwkv is uncached"
        assert [(span.policy_hash, span.start) for span in session.policy_spans] == [(policy_hash, 5)]


def test_a_turn_that_waits_is_admitted_when_the_batch_has_ended():
    """Two rows at once: the third conversation has a batch of its own."""
    sampler = _sampler(_model(), most=2)
    replies = _run(sampler, (0, 1, 2))
    assert [[len(generation.token_ids) for generation in turns] for turns in replies] == [[2, 3], [4, 3], [6, 3]]


def test_a_cancelled_turn_leaves_the_others_as_they_are():
    """The second of three is cancelled after its first token."""
    model = _model()
    expected = _run(_sampler(model), (2,))[0]
    sampler = _sampler(model)

    async def run() -> Generation:
        async with sampler:
            first_token = asyncio.Event()
            cancelled = asyncio.create_task(
                sampler.open().generate(
                    Prompt(new_ids=PROMPTS[1], on_token=lambda token: first_token.set()),
                    Sampling(temperature=1.0, max_new_tokens=50, seed=1),
                )
            )
            other = asyncio.create_task(_turn(sampler.open(), PROMPTS[2], seed=2, tokens=6))
            await first_token.wait()
            cancelled.cancel()
            return await other

    assert asyncio.run(run()).token_ids == expected[0].token_ids


def test_a_stop_token_ends_a_turn():
    """The second token that the conversation generates freely."""
    model = _model()
    free = _run(_sampler(model), (2,))[0][0]
    stop = next(token for k, token in enumerate(free.token_ids) if k and token not in free.token_ids[:k])
    stopped = _run(_sampler(model, stop=(stop,)), (2,))[0][0]
    assert (stopped.token_ids, stopped.stop) == (free.token_ids[: free.token_ids.index(stop) + 1], "stop")


def test_the_sampler_is_that_of_the_path():
    """Flat attention has slots; RWKV is sampled without its cache."""
    kinds = {
        family: type(make_sampler(_model(family), stop_ids=(), concurrency=1, max_context=64)).__name__
        for family in ("llama", "mamba2", "rwkv")
    }
    assert kinds == {"llama": "SlotSampler", "mamba2": "PaddedSampler", "rwkv": "PaddedSampler"}
    assert torch.is_grad_enabled()
