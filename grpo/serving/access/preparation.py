"""Work on the texts of requests, off the event loop: parsing, counting, rendering and tokenizing.

    request ─► short ─► one thread, keys take turns ─► result
            └► long  ─► one thread, keys take turns ─► result

A short text does not wait for a long one, and a request of one key does not wait for all requests of another key. The
characters that wait are bounded, and one key may have half of them. A request above these bounds gets 503 before any
work.

Threads are enough because no step holds the interpreter's lock for long. Tokenizers release it in batches, and JSON
with many values is refused with NumPy, see `grpo.serving.protocol.json_bounds`. Validation holds the lock for some
milliseconds per request. Therefore the lane of long texts works only a quarter of the time, because otherwise one key
that sends them in a loop would leave little time to the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from grpo.serving.protocol.api_errors import overloaded
from grpo.user_failures import UserCodeError, describe

SHORT = 32_768
"""Most characters of a text in the short lane. It is prepared in a few milliseconds."""
AT_ONCE = 16_384
"""Bytes of JSON up to which it is parsed on the event loop, because a thread would take longer to begin."""
_LEAST_CHARACTERS = 1024
"""Characters that the shortest job counts as, so that the number of jobs is bounded as well."""
_LONG_SHARE = 0.25
"""Part of the time in which the lane of long texts works."""
_CHARACTERS_PER_S = 1_000_000
"""Speed of tokenizers, from which the time until a refused request may come again is estimated."""
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _CpuTime:
    """Seconds for which the jobs of one connection kept a core busy."""

    seconds: float = 0.0


_cpu_time: ContextVar[_CpuTime | None] = ContextVar("cpu_time", default=None)


def measure_cpu() -> None:
    """Measure the CPU time of the jobs that this task and its children run from here on."""
    _cpu_time.set(_CpuTime())


def take_cpu_s() -> float:
    """CPU seconds of the jobs since the last call. 0 if `measure_cpu` was not called."""
    if (used := _cpu_time.get()) is None:
        return 0.0
    seconds, used.seconds = used.seconds, 0.0
    return seconds


def add_cpu_s(seconds: float) -> None:
    """Count time that another process worked for this task's connection."""
    if (used := _cpu_time.get()) is not None:
        used.seconds += seconds


@dataclass(slots=True, eq=False)
class _Job:
    """Work that waits or runs."""

    key: str
    characters: int
    work: Callable[[], Any]
    done: asyncio.Future[Any]
    cpu_time: _CpuTime | None


class Preparation:
    """Threads that prepare requests. `waiting_characters` bounds the characters of the jobs of a lane."""

    def __init__(self, *, waiting_characters: int = 16 * 2**20) -> None:
        self._short = Lane("short", waiting_characters)
        self._long = Lane("long", waiting_characters, share=_LONG_SHARE)
        self.refused = 0
        """Jobs that were refused because too many characters waited."""

    @property
    def characters(self) -> int:
        """Characters of the jobs that wait or run."""
        return self._short.characters + self._long.characters

    async def run(self, key: str, characters: int, work: Callable[[], T], *, admitted: bool = False) -> T:
        """Call `work` on a thread and return its result. Raises its error, and `APIError` 503 if too much text waits.

        `key` is the caller's hash. Work for a request that was `admitted` already is not refused, because the bound of
        requests in progress bounds it as well.
        """
        lane = self._short if characters <= SHORT else self._long
        size = max(characters, _LEAST_CHARACTERS)
        if not admitted and lane.is_full(key, size):
            self.refused += 1
            wait_s = 1.0 + lane.characters / _CHARACTERS_PER_S
            message = f"too many characters of requests wait to be read. Try again in {wait_s:.1f} s"
            raise overloaded(message, retry_after_s=wait_s)
        result: T = await lane.run(key, size, work)
        return result

    def admitted(self, key: str, least: int) -> Callable[[int, Callable[[], T]], Awaitable[T]]:
        """`run` for an admitted request. It counts as `least` characters or more, because tools are in each prompt."""

        def run(characters: int, work: Callable[[], T]) -> Awaitable[T]:
            return self.run(key, max(characters, least), work, admitted=True)

        return run

    def close(self) -> None:
        """End the threads. Jobs that wait are cancelled."""
        for lane in (self._short, self._long):
            lane.close()


class Lane:
    """One thread, and the jobs that wait for it, by key. The keys take turns.

    `most` bounds the characters of the jobs. After each job the thread rests, so that it works only `share` of the
    time.
    """

    def __init__(self, name: str, most: int, *, share: float = 1.0) -> None:
        self._most, self._rest = most, 1 / share - 1
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"preparation-{name}")
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._by_key: Counter[str] = Counter()
        self._running = False
        self.characters = 0

    def is_full(self, key: str, characters: int) -> bool:
        """Check whether a job exceeds the bound of all keys or of its key.

        A bound is checked only if other jobs count toward it, so that a single long job is not refused.
        """
        own = self._by_key[key]
        return bool(self.characters and self.characters + characters > self._most) or bool(
            own and own + characters > self._most // 2
        )

    async def run(self, key: str, characters: int, work: Callable[[], Any]) -> Any:
        """Result of a job, which waits for its turn."""
        job = _Job(key, characters, work, asyncio.get_running_loop().create_future(), _cpu_time.get())
        self._waiting.setdefault(key, deque()).append(job)
        self._count(job, 1)
        self._start_next()
        try:
            return await job.done
        finally:
            if job in self._waiting.get(key, ()):  # its client went away before it was run
                self._waiting[key].remove(job)
                self._count(job, -1)
                if not self._waiting[key]:
                    del self._waiting[key]

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _start_next(self) -> None:
        if self._running or not self._waiting:
            return
        key, jobs = self._waiting.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._waiting[key] = jobs  # this key goes behind the other keys
        try:
            working = asyncio.get_running_loop().run_in_executor(self._executor, _attempt, job.work)
        except RuntimeError as error:  # the system starts no thread. The next job tries it again
            self._count(job, -1)
            job.done.set_exception(error)
            return
        self._running = True
        working.add_done_callback(partial(self._end, job))

    def _end(self, job: _Job, working: asyncio.Future[Any]) -> None:
        self._count(job, -1)
        if working.cancelled():
            job.done.cancel()
            return
        result, error, busy_s = working.result()
        if job.cpu_time is not None:
            job.cpu_time.seconds += busy_s
        working.get_loop().call_later(self._rest * busy_s, self._go_on)
        if not job.done.done():  # otherwise its client went away
            if error is None:
                job.done.set_result(result)
            else:
                job.done.set_exception(error)

    def _go_on(self) -> None:
        self._running = False
        self._start_next()

    def _count(self, job: _Job, sign: int) -> None:
        self.characters += sign * job.characters
        self._by_key[job.key] += sign * job.characters
        if not self._by_key[job.key]:
            del self._by_key[job.key]


def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None, float]:
    """Result of work or its error, both as values, and the seconds for which it kept a core busy.

    A renderer of the user's own may raise anything. `StopIteration` and `SystemExit` become a `UserCodeError`, because
    futures cannot pass the first on, and because the second would end the server.
    """
    started = time.thread_time()
    result: Any = None
    failure: Exception | None = None
    try:
        result = work()
    except (StopIteration, StopAsyncIteration) as error:
        failure = _of_user(error)
    except Exception as error:
        failure = error
    except BaseException as error:
        failure = _of_user(error)
    return result, failure, time.thread_time() - started


def _of_user(error: BaseException) -> UserCodeError:
    return UserCodeError(f"the preparation of a request raised {describe(error)}")
