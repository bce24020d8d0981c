from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from grpo.errors import ConfigError, PolicyError
from grpo.policy.grammars import Grammars
from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.serving.engine.engine import Engine, EngineStopped, ProcessPolicy
from grpo.serving.engine.messages import EngineStats
from grpo.serving.engine.process import end_on_callback_error, set_threads
from tests.models.families import tiny_model
from tests.waiting import until

SYSTEM = [5 + index % 90 for index in range(40)]
LARGE = 2**24


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _given(policy: TransformersPolicy) -> TransformersPolicy:
    """The policy as the process has read it."""
    return policy


@asynccontextmanager
async def _engine(
    policy: TransformersPolicy, *, concurrency: int = 4, prefill_chunk: int = 16, prefix_cache_bytes: int = LARGE
) -> AsyncIterator[Engine]:
    engine = Engine(
        ProcessPolicy(partial(_given, policy)),
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
    return asyncio.run(asyncio.wait_for(work, 240))


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


class _Failing:
    """Hook by which some of the model's forward passes fail, counted while a file is there.

    While a second file is there, a pass waits, so that a test can submit several turns before the next pass.
    """

    def __init__(self, switch: Path, passes: set[int]) -> None:
        self.switch, self.passes, self.count = switch, passes, -1

    def __call__(self, *args: object) -> None:
        until("the pass may run", lambda: not _hold(self.switch).exists(), patience_s=60, every_s=0.01)
        if self.switch.exists():
            self.count += 1
            if self.count in self.passes:
                raise RuntimeError("no memory")


def _hold(switch: Path) -> Path:
    """File that holds up the passes of `_Failing`."""
    return switch.with_name("hold")


@pytest.fixture
def fragile(tiny_folder: Path, tmp_path: Path) -> tuple[TransformersPolicy, Path]:
    """A policy that fails in the third pass after a file was made."""
    policy = load(tiny_folder)
    policy.model.register_forward_pre_hook(_Failing(tmp_path / "fail", {2}))
    return policy, tmp_path / "fail"


async def _until_idle(engine: Engine) -> None:
    """Nothing is in a slot, after the passes that are under way."""
    while True:
        stats = engine.stats()
        if (stats.running, stats.waiting, stats.kv_tokens) == (0, 0, 0):
            return
        await asyncio.sleep(0.01)


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
            await _until_idle(engine)
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
            await _until_idle(engine)
        return tokens

    alone, together = _run(run(0)), _run(run(64))
    assert [token for token, _ in alone] == [token for token, _ in together]
    assert [token for token, _ in alone] == _drawn(policy, prompt, seed=7, tokens=20)
    assert [logprob for _, logprob in alone] == pytest.approx([logprob for _, logprob in together], abs=1e-5)


def test_a_cancelled_turn_leaves_its_slot(policy: TransformersPolicy):
    """Cancelled after its third token, of 900: the engine computes some more, and then the next conversation."""

    async def run() -> tuple[Generation, int]:
        tokens: list[int] = []
        third = asyncio.Event()

        def on_token(token: SampledToken) -> None:
            tokens.append(token.id)
            if len(tokens) == 3:
                third.set()

        async with _engine(policy, concurrency=1) as engine:
            turn = asyncio.create_task(_request(engine, SYSTEM, tokens=900, seed=2, on_token=on_token))
            await third.wait()
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            count = len(tokens)
            following = await _request(engine, [7, 60], seed=1)
            await _until_idle(engine)
            assert len(tokens) == count
            return following, engine.stats().tokens_generated

    following, generated = _run(run())
    assert following.token_ids == _drawn(policy, [7, 60], seed=1, tokens=6)
    assert generated < 900  # all of them, if it went on


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
            await _until_idle(engine)
            assert engine.stats().prefix_cache_bytes <= 40_000
        return replies

    replies = _run(run())
    assert sum(map(len, replies.values())) > 100
    for index, texts in replies.items():
        expected = _drawn(policy, prompts[index], seed=index, tokens=8)
        assert all(text == expected for text in texts)


def test_a_failed_forward_pass_ends_the_turns_in_it_and_no_later_ones(fragile: tuple[TransformersPolicy, Path]):
    """Two running turns and a waiting one fail with the model's error; the next ones are served, from what was kept."""

    async def run() -> tuple[list[object], Generation]:
        policy, switch = fragile
        async with _engine(policy, concurrency=2) as engine:
            first = await _request(engine, SYSTEM, tokens=3)
            switch.touch()
            _hold(switch).touch()
            prompts = [[*SYSTEM[:20], 150 + k] for k in range(3)]
            turns = [asyncio.create_task(_request(engine, ids, seed=k, tokens=9)) for k, ids in enumerate(prompts)]
            await asyncio.sleep(0)  # each turn has been sent to the process, which is in its first pass
            _hold(switch).unlink()
            failures = await asyncio.gather(*turns, return_exceptions=True)
            later = await _request(engine, [*SYSTEM, *first.token_ids, 9], seed=5)
            await _until_idle(engine)
            return failures, later

    failures, later = _run(run())
    assert [str(failure) for failure in failures] == ["the engine failed on the turn: RuntimeError: no memory"] * 3
    assert all(isinstance(failure, PolicyError) and "in __call__" in failure.__notes__[0] for failure in failures)
    assert later.cached_tokens == 42


def test_an_error_of_a_callback_ends_its_own_turn(policy: TransformersPolicy):
    """The other turn of the batch goes on."""

    def fail(token: SampledToken) -> None:
        raise KeyError("a defect")

    async def run() -> list[Any]:
        async with _engine(policy) as engine:
            turns = (_request(engine, SYSTEM, on_token=fail), _request(engine, [7, 60], seed=1))
            results = list(await asyncio.gather(*turns, return_exceptions=True))
            await _until_idle(engine)
            return results

    failure, generation = _run(run())
    assert repr(failure) == "KeyError('a defect')"
    assert generation.token_ids == _drawn(policy, [7, 60], seed=1, tokens=6)


def test_a_callback_ends_its_turn(policy: TransformersPolicy):
    """True at the second token: what the engine computed meanwhile is not part of the session."""
    heard: list[int] = []

    def on_token(token: SampledToken) -> bool:
        heard.append(token.id)
        return len(heard) == 2

    async def run() -> tuple[Generation, Generation]:
        async with _engine(policy) as engine:
            session = engine.open()
            sampling = Sampling(temperature=1.0, max_new_tokens=6, seed=2)
            first = await session.generate(Prompt(new_ids=SYSTEM, on_token=on_token), sampling)
            second = await session.generate(Prompt(new_ids=[50, 51]), replace(sampling, temperature=0.0))
            session.close()
            await _until_idle(engine)
            return first, second

    first, second = _run(run())
    assert (first.token_ids, first.stop) == (_drawn(policy, SYSTEM, seed=2, tokens=6)[:2], "callback")
    assert heard == first.token_ids
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*SYSTEM, *first.token_ids, 50, 51]])).logits[0, -1]
    assert second.token_ids[0] == int(logits.argmax())


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


def test_the_process_ends_with_the_context_and_turns_in_progress_fail(policy: TransformersPolicy):
    """A running turn and a waiting one; what comes later is refused."""

    async def run() -> tuple[list[BaseException | Generation], Engine]:
        started = asyncio.Event()
        async with _engine(policy, concurrency=1) as engine:
            running = asyncio.create_task(
                _request(engine, SYSTEM, tokens=900, seed=2, on_token=lambda token: started.set())
            )
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
    assert not psutil.pid_exists(engine._policy.pid)
    assert engine.stats() == EngineStats()


def test_turns_of_a_process_that_is_killed_fail(policy: TransformersPolicy):
    """The system kills it for memory: its turns end with an error that says so, and the engine is stopped."""

    async def run() -> Engine:
        async with _engine(policy) as engine:
            turn = asyncio.create_task(_request(engine, SYSTEM, tokens=900, seed=2, on_token=lambda token: kill()))

            def kill() -> None:
                os.kill(engine._policy.pid, signal.SIGKILL)

            with pytest.raises(EngineStopped, match="exit code -9"):
                await turn
            with pytest.raises(EngineStopped, match="exit code -9"):
                await _request(engine, SYSTEM)
            return engine

    assert _run(run()).stopped == "the engine process ended with exit code -9"


def test_a_process_ends_with_that_of_the_server(tiny_folder: Path):
    """SIGKILL, which leaves the server no time to end it."""
    script = (
        "import functools, os, signal, sys, pathlib\n"
        "from grpo.policy.transformers.model import load\n"
        "from grpo.serving.engine.engine import ProcessPolicy\n"
        "policy = ProcessPolicy(functools.partial(load, pathlib.Path(sys.argv[1])))\n"
        "print(policy.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    server = subprocess.run(
        [sys.executable, "-c", script, str(tiny_folder)], capture_output=True, text=True, timeout=240
    )
    assert server.returncode == -signal.SIGKILL
    until("the end of the engine process", lambda: not psutil.pid_exists(int(server.stdout)), patience_s=240)


def test_a_stop_text_in_the_last_token_is_the_end_that_counts(policy: TransformersPolicy):
    """The limit is reached with the same token."""
    heard: list[int] = []

    async def run() -> Generation:
        async with _engine(policy) as engine:
            return await _request(
                engine, SYSTEM, seed=2, tokens=3, on_token=lambda token: heard.append(token.id) or len(heard) == 3
            )

    generation = _run(run())
    assert (len(generation.token_ids), generation.stop) == (3, "callback")


def test_an_error_before_the_first_pass_is_that_of_its_turn(policy: TransformersPolicy):
    """A seed that no generator takes; the other turn goes on."""

    async def run() -> Generation:
        async with _engine(policy) as engine:
            other = asyncio.create_task(_request(engine, SYSTEM, seed=1))
            with pytest.raises(PolicyError, match="OverflowError"):
                await _request(engine, SYSTEM, seed=-1)
            return await other

    assert _run(run()).token_ids == _drawn(policy, SYSTEM, seed=1, tokens=6)


class _Panic(BaseException):
    """As errors of Rust libraries are raised."""


def test_a_panic_of_a_callback_ends_its_own_turn(policy: TransformersPolicy):
    def fail(token: SampledToken) -> None:
        raise _Panic("of a tokenizer")

    async def run() -> Generation:
        async with _engine(policy) as engine:
            with pytest.raises(PolicyError, match="_Panic: of a tokenizer"):
                await _request(engine, SYSTEM, on_token=fail)
            return await _request(engine, SYSTEM, seed=1)

    assert _run(run()).token_ids == _drawn(policy, SYSTEM, seed=1, tokens=6)


def test_a_turn_that_reads_its_prompt_is_running(policy: TransformersPolicy):
    """One token a pass: the statistics are those of each pass, and not of the first sampled token."""

    async def run() -> list[tuple[int, int]]:
        seen = []
        async with _engine(policy, prefill_chunk=1) as engine:
            sampled = asyncio.Event()
            turn = asyncio.create_task(_request(engine, SYSTEM * 5, on_token=lambda token: sampled.set()))
            while not sampled.is_set():
                stats = engine.stats()
                if stats.tokens_generated == 0:
                    seen.append((stats.running, stats.tokens_processed))
                await asyncio.sleep(0.001)
            await turn
        return seen

    seen = _run(run())
    assert max(seen) > (1, 10)


def test_an_agent_that_samples_by_itself_shares_the_engine(policy: TransformersPolicy):
    """A helper of the agent's own, which closes its sampler: the engine goes on."""
    served = ProcessPolicy(partial(_given, policy))
    renderer = Renderer(policy.tokenizer)

    async def run() -> tuple[Generation, Generation]:
        async with Engine(served, renderer) as engine:
            async with served.sampler(concurrency=1, renderer=renderer) as helper:
                sampling = Sampling(temperature=1.0, max_new_tokens=6, seed=1)
                first = await helper.open().generate(Prompt(new_ids=SYSTEM), sampling)
            return first, await _request(engine, SYSTEM, seed=1)

    first, second = _run(run())
    assert first.token_ids == second.token_ids == _drawn(policy, SYSTEM, seed=1, tokens=6)


def _fail() -> TransformersPolicy:
    raise PolicyError("the model is missing")


def _die() -> TransformersPolicy:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_an_error_of_loading_is_that_of_the_server():
    with pytest.raises(PolicyError, match="the model is missing"):
        ProcessPolicy(_fail)
    with pytest.raises(PolicyError, match="exit code -9 while it loaded the model"):
        ProcessPolicy(_die)


def test_signals_to_the_group_leave_the_process_to_the_server(policy: TransformersPolicy):
    """Ctrl-C and SIGTERM of a service manager: the server lets running turns end first."""

    async def run() -> Generation:
        async with _engine(policy) as engine:
            for stopping in (signal.SIGINT, signal.SIGTERM):
                os.kill(engine._policy.pid, stopping)
            return await _request(engine, SYSTEM, seed=1)

    assert _run(run()).token_ids == _drawn(policy, SYSTEM, seed=1, tokens=6)


def test_a_session_reads_only_new_tokens_in_its_later_turns(policy: TransformersPolicy):
    """As `Session`: between the calls of the agent's own tools the slot stays. Those tokens are not other sessions'."""

    async def run() -> tuple[Generation, Generation, int]:
        async with _engine(policy) as engine:
            session = engine.open()
            sampling = Sampling(temperature=1.0, max_new_tokens=4, seed=0)
            first = await session.generate(Prompt(new_ids=SYSTEM), sampling)
            before = engine.stats()
            second = await session.generate(Prompt(new_ids=[50, 51]), sampling)
            session.close()
            await _until_idle(engine)
            return first, second, engine.stats().tokens_processed - before.tokens_processed

    _, second, processed = _run(run())
    assert processed == 1 + 2 + 3
    assert second.cached_tokens == 0


def test_a_session_is_closed_after_a_turn_that_failed(fragile: tuple[TransformersPolicy, Path]):
    """Its record would have a gap; an error that names the remedy."""

    async def run() -> None:
        policy, switch = fragile
        switch.touch()
        async with _engine(policy) as engine:
            session = engine.open()
            sampling = Sampling(temperature=1.0, max_new_tokens=4, seed=0)
            with pytest.raises(PolicyError, match="no memory"):
                await session.generate(Prompt(new_ids=SYSTEM), sampling)
            with pytest.raises(PolicyError, match="Open another one"):
                await session.generate(Prompt(new_ids=[5]), sampling)

    _run(run())


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([], "empty"),
        ([5, 9999], "token 9999. The vocabulary has tokens 0 to"),
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
        Engine(policy, Renderer(policy.tokenizer), **setting)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("threads", "variable", "expected"), [(None, None, 3), (None, "6", 4), (2, None, 2), (2, "6", 2)], ids=str
)
def test_a_core_is_left_to_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, threads: int | None, variable: str | None, expected: int
):
    """Of 4 threads 3 are taken, unless the option or OMP_NUM_THREADS says otherwise; the variable set them already."""
    chosen = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: chosen[-1])
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    set_threads(threads)
    assert chosen[-1] == expected


def test_one_core_is_the_models(monkeypatch: pytest.MonkeyPatch):
    chosen: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    set_threads(None)
    assert chosen == [1]


def test_an_error_in_a_callback_ends_the_engine_process_and_one_of_a_task_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """After the first, a turn might never end. The second is reported to its turns already."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    async def fail() -> None:
        raise PolicyError("a pass failed")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(end_on_callback_error)
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        del task
        gc.collect()
        assert codes == []
        loop.call_soon([].pop)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert codes == [1]
    assert "a pass failed" in caplog.text
    assert "pop from empty list" in caplog.text


def _without_memory(policy: TransformersPolicy) -> TransformersPolicy:
    """The policy, in a process that cannot compile a grammar."""

    def compile_(grammars: Grammars, grammar: str) -> None:
        raise MemoryError("no memory for the grammar")

    Grammars.compile = compile_  # type: ignore[method-assign]
    return policy


def test_any_error_of_a_grammar_ends_its_turn(policy: TransformersPolicy):
    """Nothing else would end the turn, so that its client would wait for ever. The next turn is answered."""

    async def play() -> Generation:
        engine = Engine(ProcessPolicy(partial(_without_memory, policy)), Renderer(policy.tokenizer))
        async with engine:
            sampling = Sampling(temperature=1.0, max_new_tokens=2, seed=0, grammar='start: "a"')
            with pytest.raises(PolicyError, match="the engine failed on the turn: MemoryError: no memory for the"):
                await engine.open().generate(Prompt(new_ids=SYSTEM), sampling)
            return await _request(engine, SYSTEM, tokens=2)

    assert _run(play()).token_ids


class _Unkillable:
    """A process that waits for a device, so that a signal does not end it."""

    pid, exitcode = 4711, None

    def kill(self) -> None:
        """It is noted by the system."""

    def join(self, timeout: float | None = None) -> None:
        assert timeout is not None, "it would wait for ever"

    def is_alive(self) -> bool:
        return True


def test_a_process_that_cannot_be_killed_holds_up_no_next_version(
    policy: TransformersPolicy, caplog: pytest.LogCaptureFixture
):
    """The watch for versions and the end of the server go on, and the log names the process."""

    async def play() -> None:
        async with _engine(policy) as engine:
            real = engine._policy._process
            engine._policy._process = _Unkillable()  # type: ignore[assignment]
        real.kill()
        real.join()

    _run(play())
    assert "the engine process 4711 was killed and has not ended after 30 s" in caplog.text
