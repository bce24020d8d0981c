from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo.errors import ConfigError, PolicyError
from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.serving.engine import Engine, EngineStopped
from tests.models.families import tiny_model

SYSTEM = [5 + index % 90 for index in range(40)]
LARGE = 2**24


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


@asynccontextmanager
async def _engine(
    policy: TransformersPolicy, *, concurrency: int = 4, prefill_chunk: int = 16, prefix_cache_bytes: int = LARGE
) -> AsyncIterator[Engine]:
    engine = Engine(
        policy,
        Renderer(policy.tokenizer),
        concurrency=concurrency,
        prefill_chunk=prefill_chunk,
        prefix_cache_bytes=prefix_cache_bytes,
    )
    async with engine:
        yield engine


async def _request(
    engine: Engine,
    ids: Sequence[int],
    *,
    seed: int = 0,
    tokens: int = 6,
    temperature: float = 1.0,
    on_token: Callable[[SampledToken], bool | None] | None = None,
) -> Generation:
    """A turn in a session of its own."""
    session = engine.open()
    try:
        sampling = Sampling(temperature=temperature, max_new_tokens=tokens, seed=seed)
        return await session.generate(Prompt(new_ids=ids, on_token=on_token), sampling)
    finally:
        session.close()


def _run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


def _drawn(policy: TransformersPolicy, prompt: Sequence[int], *, seed: int, tokens: int) -> list[int]:
    """Tokens by inverting the cumulative distribution of plain forward passes over everything."""
    stop_ids = Renderer(policy.tokenizer).stop_ids
    ids, drawn = list(prompt), []
    for uniform in Sampling(temperature=1.0, max_new_tokens=tokens, seed=seed).uniforms(0):
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[0, -1].double()
        cumulative = torch.softmax(logits, 0).cumsum(0)
        drawn.append(int((cumulative <= uniform * cumulative[-1]).sum()))
        ids.append(drawn[-1])
        if drawn[-1] in stop_ids:
            break
    return drawn


@contextmanager
def _failing(policy: TransformersPolicy, passes: set[int]) -> Iterator[None]:
    """The model fails in these of its forward passes."""
    count = iter(range(10**9))

    def fail(*args: object) -> None:
        if next(count) in passes:
            raise RuntimeError("no memory")

    handle = policy.model.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()


async def _assert_idle(engine: Engine) -> None:
    """Nothing is in a slot, after all that was sent to the engine's loop."""
    handled = threading.Event()
    engine._call(handled.set)
    await asyncio.to_thread(handled.wait)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_tokens) == (0, 0, 0)


@pytest.mark.parametrize("prefix_cache_bytes", [0, LARGE])
def test_a_conversation_served_turn_by_turn_is_that_of_whole_reads(policy: TransformersPolicy, prefix_cache_bytes: int):
    """Three requests that continue each other sample what plain forward passes over everything give."""

    async def run() -> list[tuple[list[int], Generation]]:
        turns, ids = [], list(SYSTEM)
        async with _engine(policy, prefix_cache_bytes=prefix_cache_bytes) as engine:
            for seed, new in enumerate(([50, 51], [60], [70, 71, 72])):
                ids = [*ids, *new]
                turns.append((ids, await _request(engine, ids, seed=seed)))
                ids = [*ids, *turns[-1][1].token_ids]
            await _assert_idle(engine)
            stats = engine.stats()
            assert (stats.prefix_hits > 0) == (prefix_cache_bytes > 0) == (stats.prefix_cache_bytes > 0)
            assert stats.prefix_queries == sum(len(prompt) for prompt, _ in turns)
        return turns

    for seed, (prompt, generation) in enumerate(_run(run())):
        assert generation.token_ids == _drawn(policy, prompt, seed=seed, tokens=6)


def test_conversations_with_one_system_prompt_read_it_once(policy: TransformersPolicy):
    """The second, which comes later, reads 3 of its 43 tokens; both sample their own words."""

    async def run() -> list[Generation]:
        async with _engine(policy) as engine:
            return [await _request(engine, [*SYSTEM, *new], seed=4) for new in ([200, 201], [210, 211, 212])]

    first, second = _run(run())
    assert (first.cached_tokens, second.cached_tokens) == (0, 40)
    assert first.token_ids == _drawn(policy, [*SYSTEM, 200, 201], seed=4, tokens=6)
    assert second.token_ids == _drawn(policy, [*SYSTEM, 210, 211, 212], seed=4, tokens=6)


@pytest.mark.parametrize("prefix_cache_bytes", [0, LARGE])
@pytest.mark.parametrize("prefill_chunk", [1, 7, 512])
def test_one_seed_gives_the_same_words_under_any_load(
    policy: TransformersPolicy, prefill_chunk: int, prefix_cache_bytes: int
):
    """Alone, and among 64 neighbours of other lengths in 8 slots: the same tokens, log-probabilities within 1e-5."""
    prompt = [*SYSTEM, 200, 201]

    async def run(neighbours: int) -> list[tuple[int, float]]:
        tokens: list[tuple[int, float]] = []
        settings = {"prefill_chunk": prefill_chunk, "prefix_cache_bytes": prefix_cache_bytes}
        async with _engine(policy, concurrency=8, **settings) as engine:
            others = [
                asyncio.create_task(_request(engine, [*SYSTEM[: k % 41], 100 + k], seed=k, tokens=1 + k % 9))
                for k in range(neighbours)
            ]
            turn = _request(
                engine, prompt, seed=7, tokens=20, on_token=lambda token: tokens.append((token.id, token.logprob))
            )
            await asyncio.gather(turn, *others)
            await _assert_idle(engine)
        return tokens

    alone, together = _run(run(0)), _run(run(64))
    assert [token for token, _ in alone] == [token for token, _ in together]
    assert [token for token, _ in alone] == _drawn(policy, prompt, seed=7, tokens=20)
    assert [logprob for _, logprob in alone] == pytest.approx([logprob for _, logprob in together], abs=1e-5)


def test_a_cancelled_turn_samples_no_further_token(policy: TransformersPolicy):
    """Cancelled while its third pass ends: the fourth is without it, and its slot serves the next conversation."""
    tokens: list[int] = []

    async def run() -> tuple[Generation, list[int]]:
        loop = asyncio.get_running_loop()
        started, cancelled = asyncio.Event(), threading.Event()

        async def cancel() -> None:
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            cancelled.set()

        async with _engine(policy, concurrency=1) as engine:
            cancelling: list[object] = []

            def on_token(token: SampledToken) -> None:
                tokens.append(token.id)
                loop.call_soon_threadsafe(started.set)
                if len(tokens) == 3:
                    cancelling.append(asyncio.run_coroutine_threadsafe(cancel(), loop))
                    assert cancelled.wait(20)

            turn = asyncio.create_task(_request(engine, SYSTEM, tokens=500, on_token=on_token))
            await started.wait()
            following = await _request(engine, [7, 60], seed=1)
            await _assert_idle(engine)
            return following, list(tokens)

    following, heard = _run(run())
    assert len(heard) == 3
    assert following.token_ids == _drawn(policy, [7, 60], seed=1, tokens=6)


def test_a_storm_of_cancelled_turns_leaks_no_slot(policy: TransformersPolicy):
    """1,000 turns, of which most are cancelled at any moment; those that are not sample their own words."""
    numbers = random.Random(11)
    prompts = [[*SYSTEM[: numbers.randrange(1, 41)], 100 + k] for k in range(20)]

    async def run() -> dict[int, list[list[int]]]:
        replies: dict[int, list[list[int]]] = {}
        async with _engine(policy, concurrency=6, prefix_cache_bytes=40_000) as engine:

            async def turn(index: int, patience: int) -> None:
                generation = asyncio.create_task(_request(engine, prompts[index], seed=index, tokens=8))
                for _ in range(patience):
                    await asyncio.sleep(0)
                if patience < 60:
                    generation.cancel()
                try:
                    replies.setdefault(index, []).append((await generation).token_ids)
                except asyncio.CancelledError:
                    assert patience < 60

            for _ in range(50):
                await asyncio.gather(*(turn(numbers.randrange(20), numbers.randrange(80)) for _ in range(20)))
            last = await _request(engine, prompts[0], seed=0, tokens=8)  # after every close before it
            replies.setdefault(0, []).append(last.token_ids)
            await _assert_idle(engine)
            assert engine.stats().prefix_cache_bytes <= 40_000
        return replies

    replies = _run(run())
    assert sum(map(len, replies.values())) > 100
    for index, texts in replies.items():
        expected = _drawn(policy, prompts[index], seed=index, tokens=8)
        assert all(text == expected for text in texts)


def test_a_failed_forward_pass_ends_the_turns_in_it_and_no_later_ones(policy: TransformersPolicy):
    """Two running turns and a waiting one fail with the model's error; the next ones are served, from what was kept."""

    async def run() -> tuple[list[object], Generation]:
        async with _engine(policy, concurrency=2) as engine:
            first = await _request(engine, SYSTEM, tokens=3)
            with _failing(policy, {2}):
                turns = [_request(engine, [*SYSTEM[:20], 150 + k], seed=k, tokens=9) for k in range(3)]
                failures = await asyncio.gather(*turns, return_exceptions=True)
            later = await _request(engine, [*SYSTEM, *first.token_ids, 9], seed=5)
            await _assert_idle(engine)
            return failures, later

    failures, later = _run(run())
    assert [str(failure) for failure in failures] == ["no memory"] * 3
    assert later.cached_tokens == 42


def test_an_error_of_a_callback_ends_its_own_turn(policy: TransformersPolicy):
    """The other turn of the batch goes on."""

    def fail(token: SampledToken) -> None:
        raise KeyError("a defect")

    async def run() -> list[Any]:
        async with _engine(policy) as engine:
            turns = (_request(engine, SYSTEM, on_token=fail), _request(engine, [7, 60], seed=1))
            results = list(await asyncio.gather(*turns, return_exceptions=True))
            await _assert_idle(engine)
            return results

    failure, generation = _run(run())
    assert repr(failure) == "KeyError('a defect')"
    assert generation.token_ids == _drawn(policy, [7, 60], seed=1, tokens=6)


def test_a_callback_ends_its_turn(policy: TransformersPolicy):
    """True at the second token, on the engine's thread."""
    threads: list[str] = []

    def on_token(token: SampledToken) -> bool:
        threads.append(threading.current_thread().name)
        return len(threads) == 2

    async def run() -> Generation:
        async with _engine(policy) as engine:
            return await _request(engine, SYSTEM, seed=2, on_token=on_token)

    generation = _run(run())
    assert (generation.token_ids, generation.stop) == (_drawn(policy, SYSTEM, seed=2, tokens=6)[:2], "callback")
    assert threads == [f"engine-{policy.hash}"] * 2


def test_likeliest_tokens_are_those_of_a_plain_forward_pass(policy: TransformersPolicy):
    """Three at each of 5 greedy tokens: the first is the token itself."""

    async def run() -> Generation:
        async with _engine(policy) as engine:
            sampling = Sampling(temperature=0.0, max_new_tokens=5, seed=0, top_logprobs=3)
            return await engine.open().generate(Prompt(new_ids=SYSTEM), sampling)

    generation = _run(run())
    ids = torch.tensor([[*SYSTEM, *generation.token_ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(policy.model(input_ids=ids).logits[0, len(SYSTEM) - 1 : -1].float(), dim=-1)
    values, likeliest = logprobs.topk(3)
    assert generation.top_logprobs is not None
    assert [[token for token, _ in top] for top in generation.top_logprobs] == likeliest.tolist()
    assert generation.token_ids == likeliest[:, 0].tolist()
    returned = np.array([[logprob for _, logprob in top] for top in generation.top_logprobs])
    assert np.abs(returned - values.numpy()).max() < 1e-5


def test_the_thread_ends_with_its_context_and_turns_in_progress_fail(policy: TransformersPolicy):
    """A running turn and a waiting one; what comes later is refused."""

    async def run() -> tuple[list[BaseException | Generation], Engine]:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_token(token: SampledToken) -> None:
            loop.call_soon_threadsafe(started.set)

        async with _engine(policy, concurrency=1) as engine:
            running = asyncio.create_task(_request(engine, SYSTEM, tokens=500, on_token=on_token))
            await started.wait()
            waiting = asyncio.create_task(_request(engine, [7, 60], tokens=500))
            session = engine.open()
            await asyncio.sleep(0)
        results = await asyncio.gather(running, waiting, return_exceptions=True)
        with pytest.raises(EngineStopped):
            await session.generate(Prompt(new_ids=[5]), Sampling(temperature=1.0, max_new_tokens=1, seed=0))
        session.close()
        return results, engine

    results, engine = _run(run())
    assert [type(result) for result in results] == [EngineStopped, EngineStopped]
    assert not [thread for thread in threading.enumerate() if thread.name == f"engine-{policy.hash}"]
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_tokens) == (0, 0, 0)


def test_an_engine_serves_other_event_loops(policy: TransformersPolicy):
    """Three threads with loops of their own, and the one that opened it, at the same time."""

    async def run() -> list[Generation]:
        async with _engine(policy) as engine:

            def elsewhere(seed: int) -> Generation:
                return asyncio.run(_request(engine, SYSTEM, seed=seed))

            turns = [asyncio.to_thread(elsewhere, seed) for seed in range(3)]
            return list(await asyncio.gather(*turns, _request(engine, SYSTEM, seed=3)))

    for seed, generation in enumerate(_run(run())):
        assert generation.token_ids == _drawn(policy, SYSTEM, seed=seed, tokens=6)


def test_a_session_reads_only_new_tokens_in_its_later_turns(policy: TransformersPolicy):
    """As `Session`: between the calls of the agent's own tools the slot stays."""

    async def run() -> tuple[Generation, Generation, int]:
        async with _engine(policy) as engine:
            session = engine.open()
            sampling = Sampling(temperature=1.0, max_new_tokens=4, seed=0)
            first = await session.generate(Prompt(new_ids=SYSTEM), sampling)
            before = engine.stats()
            second = await session.generate(Prompt(new_ids=[50, 51]), sampling)
            session.close()
            assert before.kv_tokens == 43
            return first, second, engine.stats().tokens_processed - before.tokens_processed

    _, second, processed = _run(run())
    assert processed == 1 + 2 + 3
    assert second.cached_tokens == 0


def test_a_session_is_closed_after_a_turn_that_failed(policy: TransformersPolicy):
    """Its record would have a gap; an error that names the remedy."""

    async def run() -> None:
        async with _engine(policy) as engine:
            session = engine.open()
            sampling = Sampling(temperature=1.0, max_new_tokens=4, seed=0)
            with _failing(policy, {0}), pytest.raises(RuntimeError, match="no memory"):
                await session.generate(Prompt(new_ids=SYSTEM), sampling)
            with pytest.raises(PolicyError, match="open another one"):
                await session.generate(Prompt(new_ids=[5]), sampling)

    _run(run())


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([], "empty"),
        ([5, 9999], "token 9999; the model's are 0 to"),
        ([5, -1], "token -1"),
        ([5] * 1024, "1024 tokens"),
    ],
    ids=["empty", "above", "negative", "long"],
)
def test_a_prompt_that_the_model_cannot_read_is_refused(policy: TransformersPolicy, ids: list[int], problem: str):
    """Before it joins the batch, where it would fail the others."""

    async def run() -> Generation:
        async with _engine(policy) as engine:
            other = asyncio.create_task(_request(engine, SYSTEM, seed=1))
            with pytest.raises(PolicyError, match=problem):
                await _request(engine, ids)
            return await other

    assert _run(run()).token_ids == _drawn(policy, SYSTEM, seed=1, tokens=6)


@pytest.mark.parametrize("setting", [{"concurrency": 0}, {"prefill_chunk": 0}, {"prefix_cache_bytes": -1}], ids=str)
def test_settings_out_of_range_are_refused(policy: TransformersPolicy, setting: dict[str, int]):
    """Named with their values."""
    with pytest.raises(ConfigError, match=next(iter(setting))):
        Engine(policy, Renderer(policy.tokenizer), **setting)


def test_a_model_without_flat_attention_is_served_as_well(policy: TransformersPolicy):
    """Mamba-2: whole prompts, nothing kept; each conversation as alone."""
    mamba = TransformersPolicy(tiny_model("mamba2"), policy.tokenizer)

    async def run(prompts: Sequence[list[int]]) -> list[list[int]]:
        async with _engine(mamba) as engine:
            turns = (_request(engine, ids, seed=ids[0]) for ids in prompts)
            token_ids = [generation.token_ids for generation in await asyncio.gather(*turns)]
            assert engine.stats().tokens_generated == sum(map(len, token_ids))
            assert engine.stats().prefix_hits == 0
            return token_ids

    prompts = ([5, 6, 7, 8], [5, 6, 7, 8, 9, 10], [20, 21])
    assert _run(run(prompts)) == [_run(run([ids]))[0] for ids in prompts]
