from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.policy.transformers.sampling.base import TurnSession
from grpo.policy.transformers.sampling.serving_sampler import ServingSampler

SYSTEM = [5 + index % 90 for index in range(40)]
LARGE = 2**24


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


@asynccontextmanager
async def _opened(
    policy: TransformersPolicy, *, concurrency: int = 4, prefill_chunk: int = 16, prefix_cache_bytes: int = LARGE
) -> AsyncIterator[ServingSampler]:
    sampler = ServingSampler(
        policy.model,
        stop_ids=(),
        concurrency=concurrency,
        max_context=1024,
        prefill_chunk=prefill_chunk,
        prefix_cache_bytes=prefix_cache_bytes,
    )
    async with sampler:
        yield sampler


async def _turn(session: TurnSession, ids: Sequence[int], *, seed: int = 0, tokens: int = 4) -> Generation:
    return await session.generate(Prompt(new_ids=ids), Sampling(temperature=1.0, max_new_tokens=tokens, seed=seed))


async def _request(sampler: ServingSampler, ids: Sequence[int], *, seed: int = 0, tokens: int = 4) -> Generation:
    """A turn in a session of its own."""
    session = sampler.open()
    try:
        return await _turn(session, ids, seed=seed, tokens=tokens)
    finally:
        session.close()


def _assert_exact(policy: TransformersPolicy, prompt: Sequence[int], generation: Generation) -> None:
    """Log-probabilities are those of one plain forward pass."""
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*prompt, *generation.token_ids]])).logits[0].float()
    logprobs = torch.log_softmax(logits, dim=-1)[len(prompt) - 1 : -1]
    expected = logprobs[torch.arange(len(logprobs)), torch.tensor(generation.token_ids)]
    assert np.abs(np.array(generation.logprobs) - expected.numpy()).max() < 1e-5


def test_a_prompt_is_read_in_chunks_beside_running_turns(policy: TransformersPolicy):
    """40 tokens in chunks of 16, 16 and 8: the turn beside them generates a token in each of these passes."""
    steps: list[str] = []

    async def run() -> tuple[Generation, Generation, int]:
        async with _opened(policy) as sampler:
            running, arriving = sampler.open(), sampler.open()
            started = asyncio.Event()

            def on_token(token: SampledToken) -> None:
                steps.append("running")
                started.set()

            sampling = Sampling(temperature=1.0, max_new_tokens=12, seed=1)
            turn = asyncio.create_task(running.generate(Prompt(new_ids=[7, 60], on_token=on_token), sampling))
            await started.wait()
            prompt = Prompt(new_ids=SYSTEM, on_token=lambda token: steps.append("arriving"))
            steps.clear()
            second = await arriving.generate(prompt, Sampling(temperature=1.0, max_new_tokens=1, seed=2))
            passes = steps.index("arriving") + 1
            return await turn, second, passes

    first, second, passes = asyncio.run(run())
    assert passes in (3, 4)  # the turn arrives between two passes, and the third samples both
    _assert_exact(policy, [7, 60], first)
    _assert_exact(policy, SYSTEM, second)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        # 16 + 3 + 13, then 16 + 1 decoded + 16, then 8 + 1, then the second tokens of the first and the third
        ((SYSTEM, [99, 98, 97], [200 + k for k in range(30)]), [32, 33, 9, 2]),
        # two chunks; two rests of 4, a chunk and half of one; 2 decoded + 4 + 12 + 16; 2 decoded + 4; 1 decoded
        (tuple([[5 + 20 * n + k for k in range(20)] for n in range(5)]), [32, 32, 34, 6, 1]),
    ],
    ids=["a chunk of a prompt", "two chunks of all"],
)
def test_a_pass_reads_a_chunk_of_each_prompt_and_two_of_all(
    policy: TransformersPolicy,
    monkeypatch: pytest.MonkeyPatch,
    prompts: tuple[list[int], ...],
    expected: list[int],
):
    """In chunks of 16, beside the tokens of running turns, of which each generates 2."""
    sizes: list[int] = []

    async def run() -> list[Generation]:
        async with _opened(policy, concurrency=5) as sampler:
            forward = sampler._forward

            def watch(turns, cache):  # type: ignore[no-untyped-def]
                sizes.append(sum(len(turn.unread) for turn in turns))
                return forward(turns, cache)

            monkeypatch.setattr(sampler, "_forward", watch)
            turns = [_turn(sampler.open(), ids, seed=seed, tokens=2) for seed, ids in enumerate(prompts)]
            return list(await asyncio.gather(*turns))

    generations = asyncio.run(run())
    assert sizes == expected
    for ids, generation in zip(prompts, generations, strict=True):
        _assert_exact(policy, ids, generation)


def test_a_closed_conversation_is_not_read_again(policy: TransformersPolicy):
    """Three requests that continue each other: each reads what follows what the one before it has read."""

    async def run() -> list[tuple[list[int], Generation, int]]:
        turns = []
        async with _opened(policy) as sampler:
            ids: list[int] = []
            for new in (SYSTEM, [50, 51, 52], [60]):
                ids = [*ids, *new]
                before = sampler.tokens_processed
                generation = await _request(sampler, ids, seed=len(ids))
                turns.append((ids, generation, sampler.tokens_processed - before))
                ids = [*ids, *generation.token_ids]
            assert (sampler.prefix_queries, sampler.prefix_hits) == (40 + 47 + 52, 43 + 50)
            assert sampler.kv_tokens == 0
        return turns

    turns = asyncio.run(run())
    # 40 + 3 decoded; the last sampled token, 3 new ones and 3 decoded; the last one, 1 new and 3 decoded
    assert [read for _, _, read in turns] == [43, 7, 5]
    assert [generation.cached_tokens for _, generation, _ in turns] == [0, 43, 50]
    for ids, generation, _ in turns:
        _assert_exact(policy, ids, generation)


def test_the_next_turn_of_a_closed_conversation_goes_on_in_its_slot(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is copied; two conversations take turns, each in its own slot."""

    async def run() -> list[tuple[list[int], Generation, int | None]]:
        turns = []
        async with _opened(policy) as sampler:
            for name in ("copy", "read", "write"):
                monkeypatch.setattr(sampler._cache, name, None)
            heads: list[list[int]] = [SYSTEM, [*reversed(SYSTEM)]]
            for seed in range(3):
                for index, ids in enumerate(heads):
                    session = sampler.open()
                    generation = await _turn(session, [*ids, 60], seed=seed)
                    turns.append(([*ids, 60], generation, session.slot))
                    session.close()
                    heads[index] = [*ids, 60, *generation.token_ids]
        return turns

    turns = asyncio.run(run())
    assert [slot for _, _, slot in turns] == [0, 1] * 3
    assert [generation.cached_tokens for _, generation, _ in turns] == [0, 0, 44, 44, 49, 49]
    for ids, generation, _ in turns:
        _assert_exact(policy, ids, generation)


def test_two_closed_conversations_keep_their_slots_or_as_many_as_are_running(policy: TransformersPolicy):
    """Four are closed while one runs: the two that were closed first leave their slots, and are not read again."""

    async def run() -> tuple[int, int, list[Generation]]:
        async with _opened(policy, concurrency=5) as sampler:
            prompts = [[5 + 20 * n + k for k in range(20)] for n in range(5)]
            sessions = [sampler.open() for _ in prompts]
            await asyncio.gather(*(_turn(session, ids) for session, ids in zip(sessions, prompts, strict=True)))
            tokens = sum(session.length for session in sessions[:4])
            for session in sessions[:4]:
                session.close()
            assert sampler.prefix_cache_bytes == tokens * sampler._cache.token_bytes
            assert sampler.kv_tokens == sessions[4].length
            holders = len(sampler._holders)
            later = [await _request(sampler, ids, seed=9) for ids in prompts]
            for ids, generation in zip(prompts, later, strict=True):
                _assert_exact(policy, ids, generation)
            return holders, len(sampler._idle), later

    holders, idle, later = asyncio.run(run())
    assert (holders, idle) == (3, 2)
    assert [generation.cached_tokens for generation in later] == [19] * 5


def test_a_new_conversation_takes_the_slot_that_was_kept_longest(policy: TransformersPolicy):
    """Two slots, both kept: the new one evicts the first, whose next turn copies what it has read."""

    async def run() -> list[tuple[list[int], Generation]]:
        turns = []
        async with _opened(policy, concurrency=2) as sampler:
            prompts = [[5 + 20 * n + k for k in range(20)] for n in range(3)]
            for ids in (*prompts, [*prompts[0], 7]):
                turns.append((ids, await _request(sampler, ids)))
                assert len(sampler._holders) <= 2
        return turns

    turns = asyncio.run(run())
    assert [generation.cached_tokens for _, generation in turns] == [0, 0, 0, 20]
    for ids, generation in turns:
        _assert_exact(policy, ids, generation)


def test_closed_conversations_in_slots_count_as_cached_prefixes(policy: TransformersPolicy):
    """With memory for 30 tokens, one conversation of 23 is kept, and none of the one before it."""

    async def run() -> tuple[float, int]:
        async with _opened(policy) as sampler:
            await _request(sampler, SYSTEM[:20])
            size = sampler._cache.token_bytes
        async with _opened(policy, prefix_cache_bytes=30 * size) as sampler:
            await _request(sampler, SYSTEM[:20])
            await _request(sampler, [90, 91, *SYSTEM[:18]])
            return sampler.prefix_cache_bytes / size, len(sampler._idle)

    assert asyncio.run(run()) == (23, 1)


def test_the_last_token_of_a_prompt_is_always_read(policy: TransformersPolicy):
    """The same request twice: 39 of 40 tokens are copied, and the same tokens are sampled."""

    async def run() -> list[Generation]:
        async with _opened(policy) as sampler:
            return [await _request(sampler, SYSTEM, seed=3) for _ in range(2)]

    first, second = asyncio.run(run())
    assert (first.cached_tokens, second.cached_tokens) == (0, 39)
    assert first.token_ids == second.token_ids


@pytest.mark.parametrize("shared", [15, 16])
def test_short_prefixes_are_read_again(policy: TransformersPolicy, shared: int):
    """15 shared tokens are not worth a copy, 16 are."""

    async def run() -> Generation:
        async with _opened(policy) as sampler:
            await _request(sampler, SYSTEM)
            return await _request(sampler, [*SYSTEM[:shared], 200, 201])

    assert asyncio.run(run()).cached_tokens == {15: 0, 16: 16}[shared]


def test_prompts_that_arrive_together_read_their_shared_beginning_once(policy: TransformersPolicy):
    """Four of 43 tokens with a beginning of 40: it is read by one, the others copy it, from a slot in use.

    In chunks of 24: after the first there are 16 shared tokens left, which are waited for.
    """
    prompts = [[*SYSTEM, 150 + k, 160 + k, 170 + k] for k in range(4)]

    async def run() -> tuple[list[Generation], int]:
        async with _opened(policy, prefill_chunk=24) as sampler:
            sessions = [sampler.open() for _ in prompts]
            turns = (_turn(s, ids, seed=k, tokens=1) for k, (s, ids) in enumerate(zip(sessions, prompts, strict=True)))
            return list(await asyncio.gather(*turns)), sampler.tokens_processed

    generations, processed = asyncio.run(run())
    assert processed == 40 + 4 * 3
    assert [generation.cached_tokens for generation in generations] == [0, 40, 40, 40]
    for ids, generation in zip(prompts, generations, strict=True):
        _assert_exact(policy, ids, generation)


def test_a_turn_does_not_wait_for_one_that_was_cancelled(policy: TransformersPolicy):
    """Two equal prompts; the first is cancelled after its first chunk, which the second copies and goes on from."""

    async def run() -> Generation:
        async with _opened(policy) as sampler:
            reader, follower = sampler.open(), sampler.open()
            reading = asyncio.create_task(_turn(reader, SYSTEM, tokens=50))
            following = asyncio.create_task(_turn(follower, SYSTEM, seed=1))
            while not sampler.tokens_processed:
                await asyncio.sleep(0)
            reading.cancel()
            generation = await following
            reader.close()
            return generation

    generation = asyncio.run(asyncio.wait_for(run(), 240))
    assert generation.cached_tokens == 16
    _assert_exact(policy, SYSTEM, generation)


def test_a_prefix_survives_that_slots_grow(policy: TransformersPolicy):
    """600 tokens in slots that begin with 512: kept at close, and copied into slots of another capacity."""
    long = [5 + (7 * index) % 300 for index in range(600)]

    async def run() -> tuple[Generation, Generation]:
        async with _opened(policy, prefill_chunk=128) as sampler:
            await _request(sampler, long[:30])
            first = await _request(sampler, long, seed=1)
            assert sampler.kv_capacity == 4 * 1024
            return first, await _request(sampler, [*long, *first.token_ids, 9], seed=2)

    first, second = asyncio.run(run())
    assert (first.cached_tokens, second.cached_tokens) == (30, 603)
    _assert_exact(policy, long, first)
    _assert_exact(policy, [*long, *first.token_ids, 9], second)


def test_kept_bytes_are_bounded(policy: TransformersPolicy):
    """A token takes 2 layers · 2 heads · (8 + 8) numbers · 4 bytes = 256; 12,000 bytes are one request of 43 tokens."""

    async def run() -> list[int]:
        async with _opened(policy, prefix_cache_bytes=12_000) as sampler:
            kept = []
            for start in (5, 100, 5):
                generation = await _request(sampler, [start + k for k in range(40)])
                kept += [generation.cached_tokens, sampler.prefix_cache_bytes]
            return kept

    assert asyncio.run(run()) == [0, 43 * 256, 0, 43 * 256, 0, 43 * 256]


def test_slots_stay_contiguous_when_sessions_close_in_any_order(policy: TransformersPolicy):
    """Six conversations of different lengths in four slots; each goes on in a second turn in the same session."""
    order = (2, 0, 5, 1, 4, 3)

    async def converse(sampler: ServingSampler, index: int) -> list[Generation]:
        session = sampler.open()
        first = await _turn(session, SYSTEM[: 5 * index + 3], seed=index, tokens=2 + order[index])
        slots = sorted(holder.slot for holder in sampler._holders)  # type: ignore[type-var]
        assert slots == list(range(len(slots)))
        second = await _turn(session, [50, 51], seed=index, tokens=6 - order[index])
        session.close()
        return [first, second]

    async def run() -> list[list[Generation]]:
        async with _opened(policy) as sampler:
            turns = list(await asyncio.gather(*(converse(sampler, index) for index in range(6))))
            assert sampler.kv_tokens == 0
            return turns

    for index, (first, second) in enumerate(asyncio.run(run())):
        prompt = SYSTEM[: 5 * index + 3]
        _assert_exact(policy, prompt, first)
        _assert_exact(policy, [*prompt, *first.token_ids, 50, 51], second)
