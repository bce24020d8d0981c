"""Preparation of requests on threads: order, bounds, and clients that go away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from grpo.serving.access.preparation import SHORT, Preparation, measure_cpu, take_cpu_s
from grpo.serving.protocol.api_errors import APIError
from grpo.user_failures import UserCodeError


@pytest.fixture
def preparation() -> Iterator[Preparation]:
    """Preparation of 8,000 characters, of which one key may have 4,000."""
    preparation = Preparation(waiting_characters=8000)
    yield preparation
    preparation.close()


def noted(order: list[str], name: str, gate: threading.Event | None = None) -> Callable[[], str]:
    """Work that waits for the gate and notes its name."""

    def work() -> str:
        if gate is not None:
            assert gate.wait(240)
        order.append(name)
        return name

    return work


async def queued(preparation: Preparation, characters: int) -> None:
    while preparation.characters < characters:
        await asyncio.sleep(0)


def test_work_runs_on_a_thread_and_its_error_is_raised(preparation: Preparation):
    async def run() -> str:
        with pytest.raises(ZeroDivisionError):
            await preparation.run("a", 10, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        return await preparation.run("a", 10, lambda: threading.current_thread().name)

    assert asyncio.run(run()).startswith("preparation-short")
    assert preparation.characters == 0


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exception_that_no_future_holds_is_one_of_user_code(preparation: Preparation, error: type[BaseException]):
    """It neither ends the server nor the thread: the next key is answered."""

    def fails() -> None:
        raise error("of a renderer")

    async def run() -> str:
        with pytest.raises(UserCodeError, match=f"{error.__name__}: of a renderer"):
            await preparation.run("a", 10, fails)
        return await preparation.run("b", 10, lambda: "answered")

    assert asyncio.run(run()) == "answered"
    assert preparation.characters == 0


def test_a_thread_that_cannot_be_started_fails_one_request(preparation: Preparation, monkeypatch: pytest.MonkeyPatch):
    """The machine has too many processes for a moment. All later requests of the lane would wait for ever."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> str:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await preparation.run("a", 10, lambda: "first")
        return await asyncio.wait_for(preparation.run("a", 10, lambda: "second"), 240)

    assert asyncio.run(run()) == "second"
    assert preparation.characters == 0


def test_keys_take_turns(preparation: Preparation):
    """Key a sends three jobs before key b sends one, which does not wait for all of them."""
    gate, order = threading.Event(), list[str]()

    async def run() -> None:
        jobs = [preparation.run("a", 1024, noted(order, "a1", gate))]
        jobs += [preparation.run("a", 1024, noted(order, name)) for name in ("a2", "a3")]
        tasks = [asyncio.create_task(job) for job in (*jobs, preparation.run("b", 1024, noted(order, "b1")))]
        await queued(preparation, 4 * 1024)
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert order == ["a1", "a2", "b1", "a3"]  # a2 was next when b came


def test_a_short_text_does_not_wait_for_a_long_one(preparation: Preparation):
    gate = threading.Event()

    async def run() -> str:
        long = asyncio.create_task(preparation.run("a", SHORT + 1, noted([], "long", gate)))
        short = await preparation.run("a", SHORT, noted([], "short"))
        gate.set()
        return f"{short} {await long}"

    assert asyncio.run(run()) == "short long"


def test_characters_that_wait_are_bounded_for_a_key_and_for_all(preparation: Preparation):
    """Of 8,000: a and b take 4,000 each, which is all that one key may have, and c finds no room."""
    gate = threading.Event()

    async def run() -> list[APIError]:
        refused = []
        tasks = [asyncio.create_task(preparation.run(key, 2000, noted([], key, gate))) for key in "aa"]
        await queued(preparation, 4000)
        with pytest.raises(APIError) as own:
            await preparation.run("a", 2000, noted([], "a"))
        refused.append(own.value)
        tasks += [asyncio.create_task(preparation.run("b", 2000, noted([], "b"))) for _ in range(2)]
        await queued(preparation, 8000)
        with pytest.raises(APIError) as all_:
            await preparation.run("c", 2000, noted([], "c"))
        refused.append(all_.value)
        tasks.append(asyncio.create_task(preparation.run("c", 2000, noted([], "c"), admitted=True)))
        await queued(preparation, 10_000)
        gate.set()
        await asyncio.gather(*tasks)
        return refused

    for error in asyncio.run(run()):
        assert (error.status, error.code) == (503, "overloaded")
        assert error.retry_after_s is not None
        assert error.retry_after_s >= 1
    assert (preparation.refused, preparation.characters) == (2, 0)


def test_a_job_whose_client_left_is_not_done(preparation: Preparation):
    gate, order = threading.Event(), list[str]()

    async def run() -> None:
        first = asyncio.create_task(preparation.run("a", 1024, noted(order, "first", gate)))
        left = asyncio.create_task(preparation.run("a", 1024, noted(order, "left")))
        await queued(preparation, 2048)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        assert preparation.characters == 1024
        gate.set()
        await first
        await preparation.run("a", 10, noted(order, "last"))

    asyncio.run(run())
    assert order == ["first", "last"]


def test_a_client_that_leaves_takes_no_other_job_of_its_key_with_it(preparation: Preparation):
    gate, order = threading.Event(), list[str]()

    async def run() -> None:
        first = asyncio.create_task(preparation.run("a", 1024, noted(order, "first", gate)))
        left = asyncio.create_task(preparation.run("a", 1024, noted(order, "left")))
        other = asyncio.create_task(preparation.run("a", 1024, noted(order, "other")))
        await queued(preparation, 3072)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        gate.set()
        await asyncio.wait_for(asyncio.gather(first, other), 240)

    asyncio.run(run())
    assert order == ["first", "other"]


def test_long_texts_have_the_same_bound(preparation: Preparation):
    """A single long text is read whatever its size, and a second one finds no room."""
    gate = threading.Event()

    async def run() -> APIError:
        first = asyncio.create_task(preparation.run("a", SHORT + 1, noted([], "a", gate)))
        await queued(preparation, SHORT + 1)
        with pytest.raises(APIError) as refused:
            await preparation.run("b", SHORT + 1, noted([], "b"))
        gate.set()
        await first
        return refused.value

    assert asyncio.run(run()).status == 503


def test_the_lane_of_long_texts_rests(preparation: Preparation):
    """Three times as long as a job has kept a core busy, whoever sends the next one."""
    times: list[float] = []

    def work() -> None:
        times.append(time.monotonic())
        started = time.thread_time()
        while time.thread_time() < started + 0.05:
            pass
        times.append(time.monotonic())

    async def run() -> None:
        first = asyncio.create_task(preparation.run("a", SHORT + 1, work))
        await asyncio.sleep(0)
        await asyncio.gather(first, preparation.run("b", SHORT + 1, work, admitted=True))

    asyncio.run(run())
    begun, ended, next_begun, _ = times
    assert next_begun - ended > 3 * 0.05 - 0.01
    assert ended - begun > 0.04


def test_the_cpu_time_of_jobs_is_taken_once_and_by_its_connection(preparation: Preparation):
    """Two connections at once: each has the time of its own jobs, and a job that only sleeps costs next to nothing."""

    async def connection(seconds: float) -> tuple[float, float]:
        measure_cpu()
        await asyncio.gather(preparation.run("shop", 10, lambda: _compute(seconds)))
        return take_cpu_s(), take_cpu_s()

    async def both() -> list[tuple[float, float]]:
        return await asyncio.gather(connection(0.1), connection(0.0))

    (busy, after), (idle, _) = asyncio.run(both())
    assert busy >= 0.1
    assert idle < 0.05
    assert after == 0.0
    assert take_cpu_s() == 0.0


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
