"""Conversations with equal tokens: one pass for all of them until they differ."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.policy.transformers.sampling.base import TurnSession
from grpo.policy.transformers.sampling.slot_sampler import SlotSampler

PROMPT = [5, 20, 31, 40, 41, 42, 43, 44, 45]


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _sampler(policy: TransformersPolicy, *, concurrency: int, min_shared_prefix: int = 512) -> SlotSampler:
    return SlotSampler(
        policy.model,
        stop_ids=(1,),
        concurrency=concurrency,
        max_context=1024,
        min_shared_prefix=min_shared_prefix,
    )


def _sampling(seed: int, *, tokens: int = 4, temperature: float = 1.0) -> Sampling:
    return Sampling(temperature=temperature, max_new_tokens=tokens, seed=seed)


async def _turn(session: TurnSession, ids: list[int], sampling: Sampling) -> Generation:
    return await session.generate(Prompt(new_ids=ids), sampling)


def test_equal_conversations_are_one_in_each_pass(policy: TransformersPolicy):
    """Three with the same random numbers: 9 prompt tokens and 3 passes of one token, then 3 + 3 of the next turn."""

    async def run() -> None:
        async with _sampler(policy, concurrency=3) as sampler:
            sessions = [sampler.open() for _ in range(3)]
            first = await asyncio.gather(*(_turn(session, PROMPT, _sampling(0)) for session in sessions))
            assert len({tuple(generation.token_ids) for generation in first}) == 1
            assert (sampler.tokens_processed, sampler.tokens_generated) == (12, 12)
            assert [session.slot for session in sessions] == [0, None, None]
            second = await asyncio.gather(*(_turn(session, [50, 51], _sampling(0)) for session in sessions))
            assert len({tuple(generation.token_ids) for generation in second}) == 1
            assert sampler.tokens_processed == 18

    asyncio.run(run())


def test_a_conversation_that_differs_gets_a_slot_with_what_was_read(policy: TransformersPolicy):
    """The second's next turn has another text, and the third is where the first is: each goes on as if alone."""

    async def run() -> list[Generation]:
        async with _sampler(policy, concurrency=3) as sampler:
            sessions = [sampler.open() for _ in range(3)]
            await asyncio.gather(*(_turn(session, PROMPT, _sampling(0)) for session in sessions))
            texts = ([50, 51], [60, 61], [50, 51])
            turns = [_turn(session, ids, _sampling(0)) for session, ids in zip(sessions, texts, strict=True)]
            generations = await asyncio.gather(*turns)
            assert [session.slot for session in sessions] == [0, 1, None]
            assert sampler.tokens_processed == 12 + 2 * (3 + 3)
            return generations

    async def alone(ids: list[int]) -> Generation:
        async with _sampler(policy, concurrency=1) as sampler:
            session = sampler.open()
            await _turn(session, PROMPT, _sampling(0))
            return await _turn(session, ids, _sampling(0))

    first, second, third = asyncio.run(run())
    for generation, ids in ((first, [50, 51]), (second, [60, 61]), (third, [50, 51])):
        expected = asyncio.run(alone(ids))
        assert generation.token_ids == expected.token_ids
        assert generation.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_the_follower_that_has_read_most_inherits_the_slot(policy: TransformersPolicy):
    """The first conversation is closed: of those that follow it, the third is longer than the second."""

    async def run() -> None:
        async with _sampler(policy, concurrency=3) as sampler:
            first, second, third = (sampler.open() for _ in range(3))
            turns = [_turn(session, PROMPT, _sampling(0)) for session in (first, third)]
            await asyncio.gather(*turns, _turn(second, PROMPT, _sampling(0, tokens=2)))
            assert (first.slot, second.slot, third.slot) == (0, None, None)
            first.close()
            assert (first.slot, second.slot, third.slot) == (None, None, 0)
            third.close()
            second.close()
            assert await _turn(sampler.open(), PROMPT, _sampling(0))  # all three slots are free again

    asyncio.run(run())


def test_a_follower_counts_as_a_conversation(policy: TransformersPolicy):
    """Two at once: the third waits, though the first two have one slot."""

    async def run() -> None:
        async with _sampler(policy, concurrency=2) as sampler:
            sessions = [sampler.open() for _ in range(3)]
            tasks = [asyncio.create_task(_turn(session, PROMPT, _sampling(0))) for session in sessions]
            await asyncio.gather(*tasks[:2])
            assert (sampler.waiting, sampler.running) == (1, 0)
            sessions[1].close()
            assert (await tasks[2]).token_ids == (await tasks[0]).token_ids

    asyncio.run(run())


def test_a_failed_leader_leaves_its_idle_follower_what_it_has_read(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
):
    """Two others fail while it waits for its next turn: it has the slot, and goes on as if alone."""

    async def run() -> Generation:
        async with _sampler(policy, concurrency=3) as sampler:
            asyncio.get_running_loop().set_exception_handler(lambda loop, problem: None)
            other, leader, idle = (sampler.open() for _ in range(3))
            await asyncio.gather(
                _turn(other, [9, 8, 7], _sampling(3)),
                _turn(leader, PROMPT, _sampling(0)),
                _turn(idle, PROMPT, _sampling(0, tokens=2)),
            )
            assert (leader.slot, idle.slot) == (1, None)
            with monkeypatch.context() as patch:
                patch.setattr(sampler, "_pass", lambda turns, cache: 1 / 0)
                turns = [_turn(session, [50], _sampling(0)) for session in (other, leader)]
                failures = await asyncio.gather(*turns, return_exceptions=True)
            assert [type(failure) for failure in failures] == [ZeroDivisionError] * 2
            assert idle.slot == 0
            other.close()
            leader.close()
            return await _turn(idle, [60, 61], _sampling(0))

    async def alone() -> Generation:
        async with _sampler(policy, concurrency=1) as sampler:
            session = sampler.open()
            await _turn(session, PROMPT, _sampling(0, tokens=2))
            return await _turn(session, [60, 61], _sampling(0))

    generation, expected = asyncio.run(run()), asyncio.run(alone())
    assert generation.token_ids == expected.token_ids
    assert generation.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_conversations_are_as_if_alone(policy: TransformersPolicy, seed: int):
    """Of up to three turns with few different texts and random numbers; some end early, cancelled or closed.

    Two texts begin alike, with 3 tokens; with even seeds these are held once until the third text comes.
    """
    rng = np.random.default_rng(seed)
    texts = [[5, 20, 31], [5, 20, 31, 7], [9]]
    min_shared_prefix = 512 if seed % 2 else 2
    scripts = [
        (int(rng.integers(0, 3)), [texts[k] for k in rng.integers(0, 3, rng.integers(1, 4))], bool(rng.random() < 0.2))
        for _ in range(12)
    ]

    async def converse(sampler: SlotSampler, script: tuple[int, list[list[int]], bool]) -> list[Generation]:
        number, prompts, is_cancelled = script
        session = sampler.open()
        generations = [await _turn(session, ids, _sampling(number, temperature=0.3)) for ids in prompts]
        if is_cancelled:
            task = asyncio.create_task(_turn(session, [7], _sampling(number, tokens=50)))
            for _ in range(8):
                await asyncio.sleep(0)
            task.cancel()
        session.close()
        return generations

    async def run(scripts: list[tuple[int, list[list[int]], bool]], concurrency: int) -> list[list[Generation]]:
        async with _sampler(policy, concurrency=concurrency, min_shared_prefix=min_shared_prefix) as sampler:

            def check() -> None:
                assert [session.slot for session in sampler._holders] == list(range(len(sampler._holders)))
                assert len(sampler._holders) + len(sampler._followers) <= concurrency

            sampler.on_pass = check
            results = await asyncio.gather(*(converse(sampler, script) for script in scripts))
            assert not sampler._holders
            assert not sampler._followers
            return results

    together = asyncio.run(run(scripts, int(rng.integers(2, 13))))
    for script, generations in zip(scripts, together, strict=True):
        (alone,) = asyncio.run(run([script], 1))
        assert [generation.token_ids for generation in generations] == [generation.token_ids for generation in alone]
        for generation, expected in zip(generations, alone, strict=True):
            assert generation.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
