"""Limits per caller, on a clock of the test's own: in the memory of one process, and in a database of several."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from grpo.config.serving import CallerLimits
from grpo.serving.access.budgets import TokenBudgets
from grpo.serving.access.callers import Caller
from grpo.serving.access.limits import Limiter, LimitExceeded, Reservation, duration
from grpo.serving.access.usage import LocalUsage
from grpo.serving.shared.database import SharedDatabase
from grpo.serving.shared.usage import SharedUsage
from tests.e2e.postgres import Cluster
from tests.grpo.serving.databases import cluster, new_database

__all__ = ["cluster"]
T = TypeVar("T")


class Clock:
    """Seconds and date that the test sets."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s

    def now(self) -> datetime:
        return datetime(2026, 11, 30, 23, 0, tzinfo=UTC) + timedelta(seconds=self.s - 1000.0)


class Store:
    """One store of usage, its clock, and limiters on it; `url` is None for the memory of this process."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.clock = Clock()
        self._folder, self._url = folder, url
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self.limiter = self.server()
        """Limiter of the first server."""

    def server(self) -> Limiter:
        """Limiter of a further server, or after a restart: budgets are shared by both stores."""
        return self.run(self._server())

    async def _server(self) -> Limiter:
        if self._url is None:
            budgets = TokenBudgets(self._folder / "budgets.db")
            self._open.callback(budgets.close)
            return Limiter(LocalUsage(budgets, clock=self.clock), now=self.clock.now)
        database = await self._open.enter_async_context(SharedDatabase(self._url))
        return Limiter(SharedUsage(database, clock=self.clock), now=self.clock.now)

    def close(self) -> None:
        self.run(self._open.aclose())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def reserve(self, caller: Caller, tokens: int = 1, *, by: Limiter | None = None) -> Reservation:
        return self.run((by or self.limiter).reserve(caller, tokens))

    def settle(self, reservation: Reservation, tokens: int) -> None:
        self.run(reservation.settle(tokens))

    def headers(self, caller: Caller) -> dict[str, str]:
        return self.run(self.limiter.headers(caller))

    def refusal(self, caller: Caller, tokens: int = 1, *, by: Limiter | None = None) -> LimitExceeded:
        with pytest.raises(LimitExceeded) as caught:
            self.reserve(caller, tokens, by=by)
        return caught.value


@pytest.fixture(params=["local", "shared"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Both stores: each case holds for both."""
    url = None if request.param == "local" else new_database(request.getfixturevalue("cluster"))
    opened = Store(tmp_path, url)
    yield opened
    opened.close()


def _caller(name: str = "shop", **limits: int) -> Caller:
    return Caller(name=name, key_hash=name, scopes=frozenset({"chat"}), limits=CallerLimits(**limits))


def test_requests_count_for_sixty_seconds_each(store: Store):
    """Two a minute at 0 and 40 s: the third is admitted at 60 s, the fourth at 100 s."""
    clock, caller = store.clock, _caller(requests_per_minute=2)
    store.reserve(caller)
    clock.s += 40
    store.reserve(caller)
    refusal = store.refusal(caller)
    assert (refusal.status, refusal.kind, refusal.code) == (429, "requests", "rate_limit_exceeded")
    assert refusal.retry_after_s == 20
    clock.s += 19.99
    assert store.refusal(caller).retry_after_s == pytest.approx(0.01)
    clock.s += 0.01
    store.reserve(caller)
    assert store.refusal(caller).retry_after_s == pytest.approx(40)


def test_tokens_are_reserved_and_refunded(store: Store):
    """80 of 100 reserved, 30 more refused; 50 of them unused, so that 50 more fit, and then not one."""
    clock, caller = store.clock, _caller(tokens_per_minute=100)
    reservation = store.reserve(caller, 80)
    clock.s += 1
    refusal = store.refusal(caller, 30)
    assert (refusal.kind, refusal.retry_after_s) == ("tokens", 59)
    store.settle(reservation, 50)
    store.settle(reservation, 0)  # only the first call counts
    store.reserve(caller, 50)
    assert store.refusal(caller, 1).retry_after_s == 59
    assert store.refusal(caller, 51).retry_after_s == 60  # both have to leave the window


def test_a_refund_after_the_window_counts_nowhere(store: Store):
    """The tokens of a request of 70 s are out of the window when it ends; a newer request keeps its own."""
    clock, caller = store.clock, _caller(tokens_per_minute=100)
    long = store.reserve(caller, 100)
    clock.s += 70
    store.reserve(caller, 60)
    store.settle(long, 10)
    assert store.headers(caller)["x-ratelimit-remaining-tokens"] == "40"


def test_more_tokens_than_reserved_count_as_well(store: Store):
    """100 of 100 reserved and 130 used: nothing is left, and the rest is not negative."""
    clock, caller = store.clock, _caller(tokens_per_minute=100)
    store.settle(store.reserve(caller, 100), 130)
    assert store.headers(caller)["x-ratelimit-remaining-tokens"] == "0"
    clock.s += 60
    assert store.headers(caller)["x-ratelimit-remaining-tokens"] == "100"


def test_a_caller_whose_limits_are_used_up_is_refused_whatever_it_asks(store: Store):
    """The check takes nothing: 10 of 10 tokens of the day, and the one parallel request, are there after it."""
    caller = _caller(parallel=1, requests_per_minute=5, tokens_per_day=10)
    for _ in range(9):
        store.run(store.limiter.check(caller))
    reservation = store.reserve(caller, 10)
    with pytest.raises(LimitExceeded) as busy:
        store.run(store.limiter.check(caller))
    assert busy.value.kind == "parallel"
    store.settle(reservation, 10)
    with pytest.raises(LimitExceeded) as spent:
        store.run(store.limiter.check(caller))
    assert (spent.value.kind, spent.value.retry_after_s) == ("tokens_per_day", 3600)


def test_a_request_above_the_limit_is_never_admitted(store: Store):
    """There is nothing to wait for."""
    refusal = store.refusal(_caller(tokens_per_minute=100), 101)
    assert (refusal.kind, refusal.retry_after_s) == ("tokens", None)
    assert "this request may take 101 tokens, the limit of this key is 100 a minute" in refusal.message


def test_parallel_requests_end_when_they_are_settled(store: Store):
    """Two at once; a refused request counts for no other limit."""
    caller = _caller(parallel=2, requests_per_minute=3)
    first, _ = store.reserve(caller), store.reserve(caller)
    assert (store.refusal(caller).kind, store.refusal(caller).retry_after_s) == ("parallel", 1)
    store.settle(first, 1)
    store.settle(store.reserve(caller), 1)
    assert store.refusal(caller).kind == "requests"


def test_the_longest_wait_is_named(store: Store):
    """Parallel requests and tokens are both exhausted: after the wait for tokens the request may fit."""
    caller = _caller(parallel=1, tokens_per_minute=10)
    store.reserve(caller, 10)
    assert store.refusal(caller, 1).kind == "tokens"
    assert store.refusal(caller, 11).retry_after_s is None


def test_callers_do_not_share_limits(store: Store):
    """Each has its own; a caller without limits is never refused."""
    for name in ("a", "b"):
        store.reserve(_caller(name, requests_per_minute=1))
        store.refusal(_caller(name, requests_per_minute=1))
    for _ in range(1000):
        store.reserve(_caller("c"), 10**9)


def test_headers_are_those_of_openai(store: Store):
    """Limit, rest and time until all of it is there again, for the limits that there are."""
    clock, caller = store.clock, _caller(requests_per_minute=3, tokens_per_minute=100)
    store.reserve(caller, 30)
    clock.s += 20
    store.settle(store.reserve(caller, 30), 10)
    clock.s += 0.5
    assert store.headers(caller) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "59.5s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "60",
        "x-ratelimit-reset-tokens": "59.5s",
    }
    assert store.refusal(caller, 90).headers == store.headers(caller)
    assert store.headers(_caller("other")) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0115, "12ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (360, "6m0s"), (61.25, "1m1.25s")],
)
def test_a_duration_is_written_as_openai_does(seconds: float, text: str):
    """In milliseconds, rounded up."""
    assert duration(seconds) == text


def test_racing_threads_are_granted_exactly_the_limit():
    """64 threads at one moment, 37 requests a minute, of at most 20 at once: 20, and 17 after these have ended."""
    clock = Clock()
    limiter, caller = Limiter(LocalUsage(clock=clock)), _caller(requests_per_minute=37, parallel=20)

    def race() -> list[Reservation]:
        granted: list[Reservation] = []
        barrier = threading.Barrier(64)

        def client() -> None:
            barrier.wait()
            try:
                granted.append(asyncio.run(limiter.reserve(caller, 1)))
            except LimitExceeded:
                return

        threads = [threading.Thread(target=client) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return granted

    for _ in range(10):
        for expected in (20, 17, 0):
            granted = race()
            assert len(granted) == expected
            for reservation in granted:
                asyncio.run(reservation.settle(1))
        clock.s += 60


def _race(url: str, start: Any, granted: Any) -> None:
    """One server of three: 40 requests of 10 tokens at one moment."""
    limits = {"requests_per_minute": 37, "parallel": 20, "tokens_per_day": 450, "tokens_per_minute": 10_000}

    async def reserve(limiter: Limiter) -> Reservation | None:
        try:
            return await limiter.reserve(_caller(**limits), 10)
        except LimitExceeded:
            return None

    async def serve() -> None:
        async with SharedDatabase(url) as database:
            limiter = Limiter(SharedUsage(database, clock=lambda: 1000.0), now=Clock().now)
            for _ in range(3):
                await asyncio.to_thread(start.wait)
                reservations = await asyncio.gather(*(reserve(limiter) for _ in range(40)))
                granted.put(sum(each is not None for each in reservations))
                await asyncio.to_thread(start.wait)
                for reservation in filter(None, reservations):
                    await reservation.settle(10)
            await asyncio.to_thread(start.wait)

    asyncio.run(serve())


def test_racing_servers_are_granted_exactly_the_limit(cluster: Cluster):
    """Three processes, 40 requests each, 37 a minute and 20 at once: 20, then 17 of them, then none."""
    url, processes = new_database(cluster), multiprocessing.get_context("spawn")
    start, granted = processes.Barrier(4), processes.Queue()
    servers = [processes.Process(target=_race, args=(url, start, granted)) for _ in range(3)]
    for server in servers:
        server.start()
    totals = []
    for _ in range(3):
        start.wait()
        totals.append(sum(granted.get() for _ in servers))
        start.wait()
    start.wait()
    for server in servers:
        server.join()
    assert totals == [20, 17, 0]
    assert cluster.query(url.rpartition("/")[2], "SELECT period, tokens FROM grpo_serve.budgets") == [
        ("2026-11-30", 370)
    ]


def test_parallel_requests_of_a_server_that_was_killed_are_free(cluster: Cluster):
    """Its connection ends with its process; its window and its budget stay counted."""
    url, processes = new_database(cluster), multiprocessing.get_context("spawn")
    entered = processes.Queue()
    server = processes.Process(target=_hold, args=(url, entered))
    server.start()
    assert entered.get() == "entered"

    async def after() -> None:
        async with SharedDatabase(url) as database:
            limiter = Limiter(SharedUsage(database, clock=lambda: 1000.0), now=Clock().now)
            with pytest.raises(LimitExceeded) as busy:
                await limiter.reserve(_HELD, 10)
            assert busy.value.kind == "parallel"
            server.kill()
            server.join()
            reservation = None
            while reservation is None:  # until the database has noticed
                try:
                    reservation = await limiter.reserve(_HELD, 10)
                except LimitExceeded:
                    continue
            assert reservation.headers["x-ratelimit-remaining-requests"] == "1"
            await reservation.settle(10)
            with pytest.raises(LimitExceeded) as spent:
                await limiter.reserve(_HELD, 1)
            assert spent.value.kind == "tokens_per_day"

    asyncio.run(after())


_HELD = _caller(parallel=1, requests_per_minute=3, tokens_per_day=20)


def _hold(url: str, entered: Any) -> None:
    """Server that is killed while a request of 10 tokens runs."""

    async def serve() -> None:
        async with SharedDatabase(url) as database:
            await Limiter(SharedUsage(database, clock=lambda: 1000.0), now=Clock().now).reserve(_HELD, 10)
            entered.put("entered")
            await asyncio.Event().wait()

    asyncio.run(serve())


@pytest.mark.parametrize("seed", range(2))
def test_64_racing_clients_are_granted_what_an_independent_count_allows(store: Store, seed: int):
    """The test keeps a list of all grants. After steps of 0 to 30 s, the limiter decides as a count of this list."""
    draw = random.Random(seed)
    clock, steps = store.clock, 300 if isinstance(store.limiter._usages, LocalUsage) else 20
    caller = _caller(requests_per_minute=40, tokens_per_minute=900, parallel=50)
    grants: list[list[float]] = []  # time, tokens
    running: list[tuple[Reservation, list[float]]] = []
    refused = 0
    turns = asyncio.Lock()

    async def client() -> None:
        nonlocal refused
        await asyncio.sleep(0)
        tokens = draw.randint(1, 60)
        async with turns:  # what fits is counted in the order of the decisions
            inside = [grant for grant in grants if grant[0] + 60.0 > clock.s]
            fits = len(inside) < 40 and sum(grant[1] for grant in inside) + tokens <= 900 and len(running) < 50
            try:
                reservation = await store.limiter.reserve(caller, tokens)
            except LimitExceeded:
                assert not fits
                refused += 1
                return
            assert fits
            grants.append([clock.s, tokens])
            running.append((reservation, grants[-1]))

    async def play() -> None:
        for _ in range(steps):
            clock.s += draw.choice([0.0, 0.25, 1.0, 7.5, 30.0])
            await asyncio.gather(*(client() for _ in range(64)))
            for _ in range(draw.randint(0, len(running))):
                reservation, grant = running.pop(draw.randrange(len(running)))
                grant[1] = draw.randint(0, int(grant[1]))
                await reservation.settle(int(grant[1]))
            inside = [grant for grant in grants if grant[0] + 60.0 > clock.s]
            headers = await store.limiter.headers(caller)
            assert headers["x-ratelimit-remaining-requests"] == str(40 - len(inside))
            assert headers["x-ratelimit-remaining-tokens"] == str(900 - sum(int(grant[1]) for grant in inside))

    store.run(play())
    assert refused > 4 * steps
    assert len(grants) > 3 * steps


def test_idle_callers_are_forgotten():
    """Subjects of tokens have no bound: after a minute 1,000 of them leave no more than the ones that run."""
    clock = Clock()
    usages = LocalUsage(clock=clock)
    limiter = Limiter(usages)

    async def play() -> None:
        kept = await limiter.reserve(_caller("kept", parallel=1), 1)
        for k in range(1000):
            await (await limiter.reserve(_caller(f"user-{k}", requests_per_minute=5), 1)).settle(1)
        clock.s += 61
        for k in range(1001):
            await (await limiter.reserve(_caller("other" if k % 2 else "another", parallel=1), 1)).settle(1)
        assert len(usages) <= 4
        with pytest.raises(LimitExceeded) as busy:
            await limiter.reserve(_caller("kept", parallel=1), 1)
        assert busy.value.kind == "parallel"
        await kept.settle(1)
        await limiter.reserve(_caller("kept", parallel=1), 1)

    asyncio.run(play())


def test_a_budget_survives_a_restart(store: Store):
    """70 of 100 for the day, in a second process 30 fit and 31 do not; the next day is new, the month is not."""
    clock, caller = store.clock, _caller(tokens_per_day=100, tokens_per_month=120)
    store.settle(store.reserve(caller, 90), 70)
    after = store.server()
    refusal = store.refusal(caller, 31, by=after)
    assert (refusal.kind, refusal.code) == ("tokens_per_day", "insufficient_quota")
    assert refusal.retry_after_s == 3600  # 23:00 to midnight, UTC
    assert "30 are left of 100 for 2026-11-30 (UTC)" in refusal.message
    store.settle(store.reserve(caller, 30, by=after), 30)
    clock.s += 3600  # December: day and month are new
    store.settle(store.reserve(caller, 100), 100)
    clock.s += 24 * 3600
    refusal = store.refusal(caller, 21, by=after)
    assert refusal.kind == "tokens_per_month"
    assert refusal.retry_after_s == 30 * 24 * 3600  # 2 December to 1 January
    assert store.refusal(caller, 121).retry_after_s is None
    store.reserve(caller, 20)


def test_a_reservation_that_a_crash_ends_stays_counted(store: Store):
    """Too many tokens are counted, never too few; and a refund goes to the day of its reservation."""
    clock, caller = store.clock, _caller(tokens_per_day=100)
    store.reserve(caller, 60)
    after = store.server()
    assert store.refusal(caller, 41, by=after).kind == "tokens_per_day"
    overnight = store.reserve(caller, 40, by=after)
    clock.s += 3600
    store.settle(overnight, 10)
    store.reserve(caller, 100)  # of December
    clock.s -= 3600
    assert "30 are left of 100 for 2026-11-30" in store.refusal(caller, 31).message


def test_a_budget_without_a_file_is_an_error():
    """It is not ignored."""
    with pytest.raises(RuntimeError, match="key shop has a token budget"):
        asyncio.run(Limiter().reserve(_caller(tokens_per_day=1), 1))


def test_a_request_counts_before_its_tokens_are_known(store: Store):
    """One at once and two a minute: it holds both from its entry on, and gives both back when it is cancelled."""
    caller = _caller(parallel=1, requests_per_minute=2, tokens_per_minute=100)
    entered = store.run(store.limiter.enter(caller))
    assert store.refusal(caller).kind == "parallel"
    assert store.headers(caller)["x-ratelimit-remaining-requests"] == "1"
    store.run(entered.cancel())
    store.run(entered.cancel())
    assert store.headers(caller)["x-ratelimit-remaining-requests"] == "2"
    store.reserve(caller)


def test_tokens_of_a_request_that_entered_are_taken_later(store: Store):
    """At 50 s it takes 80 of 100 tokens, which are free at 110 s; one that is refused and cancelled takes none."""
    clock, caller = store.clock, _caller(requests_per_minute=5, tokens_per_minute=100)
    entered, other = (store.run(store.limiter.enter(caller)) for _ in range(2))
    clock.s += 50
    store.run(entered.take(80))
    store.settle(entered, 80)
    with pytest.raises(LimitExceeded) as refused:
        store.run(other.take(30))
    store.run(other.cancel())
    assert (refused.value.kind, refused.value.retry_after_s) == ("tokens", 60)
    headers = store.headers(caller)
    assert (headers["x-ratelimit-remaining-requests"], headers["x-ratelimit-remaining-tokens"]) == ("4", "20")
    clock.s += 60
    assert store.headers(caller)["x-ratelimit-remaining-tokens"] == "100"


def test_a_cancelled_request_gives_its_tokens_back_to_all_limits(store: Store):
    """It took 80 of 100 tokens of the minute, the day and the month, and a second end changes nothing."""
    caller = _caller(tokens_per_minute=100, tokens_per_day=100, tokens_per_month=100)
    entered = store.run(store.limiter.enter(caller))
    store.run(entered.take(80))
    assert store.refusal(caller, 21).kind == "tokens"
    store.run(entered.cancel())
    store.run(entered.cancel())
    store.settle(entered, 50)
    store.settle(store.reserve(caller, 100), 100)
    store.clock.s += 60
    assert store.refusal(caller).kind == "tokens_per_day"
