"""Limits per caller, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from grpo.serving.budgets import TokenBudgets
from grpo.serving.callers import Caller, CallerLimits
from grpo.serving.limits import Limiter, LimitExceeded, Reservation, duration


class Clock:
    """Seconds and date that the test sets."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s

    def now(self) -> datetime:
        return datetime(2026, 11, 30, 23, 0, tzinfo=UTC) + timedelta(seconds=self.s - 1000.0)


def _caller(name: str = "shop", **limits: int) -> Caller:
    return Caller(name=name, key_hash=name, scopes=frozenset({"chat"}), limits=CallerLimits(**limits))


def _reserve(limiter: Limiter, caller: Caller, tokens: int = 1) -> Reservation:
    return asyncio.run(limiter.reserve(caller, tokens))


def _refusal(limiter: Limiter, caller: Caller, tokens: int = 1) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        _reserve(limiter, caller, tokens)
    return caught.value


def test_requests_count_for_sixty_seconds_each():
    """Two a minute at 0 and 40 s: the third is admitted at 60 s, the fourth at 100 s."""
    clock = Clock()
    limiter, caller = Limiter(clock=clock), _caller(requests_per_minute=2)
    _reserve(limiter, caller)
    clock.s += 40
    _reserve(limiter, caller)
    refusal = _refusal(limiter, caller)
    assert (refusal.status, refusal.kind, refusal.code) == (429, "requests", "rate_limit_exceeded")
    assert refusal.retry_after_s == 20
    clock.s += 19.99
    assert _refusal(limiter, caller).retry_after_s == pytest.approx(0.01)
    clock.s += 0.01
    _reserve(limiter, caller)
    assert _refusal(limiter, caller).retry_after_s == pytest.approx(40)


def test_tokens_are_reserved_and_refunded():
    """80 of 100 reserved, 30 more refused; 50 of them unused, so that 50 more fit, and then not one."""
    clock = Clock()
    limiter, caller = Limiter(clock=clock), _caller(tokens_per_minute=100)
    reservation = _reserve(limiter, caller, 80)
    clock.s += 1
    refusal = _refusal(limiter, caller, 30)
    assert (refusal.kind, refusal.retry_after_s) == ("tokens", 59)
    reservation.settle(50)
    reservation.settle(0)  # only the first call counts
    _reserve(limiter, caller, 50)
    assert _refusal(limiter, caller, 1).retry_after_s == 59
    assert _refusal(limiter, caller, 51).retry_after_s == 60  # both have to leave the window


def test_a_refund_after_the_window_counts_nowhere():
    """The tokens of a request of 70 s are out of the window when it ends; a newer request keeps its own."""
    clock = Clock()
    limiter, caller = Limiter(clock=clock), _caller(tokens_per_minute=100)
    long = _reserve(limiter, caller, 100)
    clock.s += 70
    _reserve(limiter, caller, 60)
    long.settle(10)
    assert limiter.headers(caller)["x-ratelimit-remaining-tokens"] == "40"


def test_more_tokens_than_reserved_count_as_well():
    """100 of 100 reserved and 130 used: nothing is left, and the rest is not negative."""
    clock = Clock()
    limiter, caller = Limiter(clock=clock), _caller(tokens_per_minute=100)
    _reserve(limiter, caller, 100).settle(130)
    assert limiter.headers(caller)["x-ratelimit-remaining-tokens"] == "0"
    clock.s += 60
    assert limiter.headers(caller)["x-ratelimit-remaining-tokens"] == "100"


def test_a_caller_whose_limits_are_used_up_is_refused_whatever_it_asks(tmp_path: Path):
    """The check takes nothing: 10 of 10 tokens of the day, and the one parallel request, are there after it."""
    clock = Clock()
    budgets = TokenBudgets(tmp_path / "budgets.db")
    limiter = Limiter(budgets, clock=clock, now=clock.now)
    caller = _caller(parallel=1, requests_per_minute=5, tokens_per_day=10)
    for _ in range(9):
        limiter.check(caller)
    reservation = _reserve(limiter, caller, 10)
    with pytest.raises(LimitExceeded) as busy:
        limiter.check(caller)
    assert busy.value.kind == "parallel"
    reservation.settle(10)
    with pytest.raises(LimitExceeded) as spent:
        limiter.check(caller)
    assert (spent.value.kind, spent.value.retry_after_s) == ("tokens_per_day", 3600)
    budgets.close()


def test_a_request_above_the_limit_is_never_admitted():
    """There is nothing to wait for."""
    refusal = _refusal(Limiter(clock=Clock()), _caller(tokens_per_minute=100), 101)
    assert (refusal.kind, refusal.retry_after_s) == ("tokens", None)
    assert "this request may take 101 tokens, the limit of this key is 100 a minute" in refusal.message


def test_parallel_requests_end_when_they_are_settled():
    """Two at once; a refused request counts for no other limit."""
    limiter, caller = Limiter(clock=Clock()), _caller(parallel=2, requests_per_minute=3)
    first, _ = _reserve(limiter, caller), _reserve(limiter, caller)
    assert (_refusal(limiter, caller).kind, _refusal(limiter, caller).retry_after_s) == ("parallel", 1)
    first.settle(1)
    _reserve(limiter, caller).settle(1)
    assert _refusal(limiter, caller).kind == "requests"


def test_the_longest_wait_is_named():
    """Parallel requests and tokens are both exhausted: after the wait for tokens the request may fit."""
    limiter, caller = Limiter(clock=Clock()), _caller(parallel=1, tokens_per_minute=10)
    _reserve(limiter, caller, 10)
    assert _refusal(limiter, caller, 1).kind == "tokens"
    assert _refusal(limiter, caller, 11).retry_after_s is None


def test_callers_do_not_share_limits():
    """Each has its own; a caller without limits is never refused."""
    limiter = Limiter(clock=Clock())
    for name in ("a", "b"):
        _reserve(limiter, _caller(name, requests_per_minute=1))
        _refusal(limiter, _caller(name, requests_per_minute=1))
    for _ in range(1000):
        _reserve(limiter, _caller("c"), 10**9)


def test_headers_are_those_of_openai():
    """Limit, rest and time until all of it is there again, for the limits that there are."""
    clock = Clock()
    limiter, caller = Limiter(clock=clock), _caller(requests_per_minute=3, tokens_per_minute=100)
    _reserve(limiter, caller, 30)
    clock.s += 20
    _reserve(limiter, caller, 30).settle(10)
    clock.s += 0.5
    assert limiter.headers(caller) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "59.5s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "60",
        "x-ratelimit-reset-tokens": "59.5s",
    }
    assert _refusal(limiter, caller, 90).headers == limiter.headers(caller)
    assert limiter.headers(_caller("other")) == {}


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
    limiter, caller = Limiter(clock=clock), _caller(requests_per_minute=37, parallel=20)

    def race() -> list[Reservation]:
        granted: list[Reservation] = []
        barrier = threading.Barrier(64)

        def client() -> None:
            barrier.wait()
            try:
                granted.append(_reserve(limiter, caller))
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
                reservation.settle(1)
        clock.s += 60


@pytest.mark.parametrize("seed", range(2))
def test_64_racing_clients_are_granted_what_an_independent_count_allows(seed: int):
    """Over 300 steps of 0 to 30 s each decision is that of a list of all grants, which is counted anew every time."""
    draw = random.Random(seed)
    clock = Clock()
    limiter = Limiter(clock=clock)
    caller = _caller(requests_per_minute=40, tokens_per_minute=900, parallel=50)
    grants: list[list[float]] = []  # time, tokens
    running: list[tuple[Reservation, list[float]]] = []
    refused = 0

    async def client() -> None:
        nonlocal refused
        await asyncio.sleep(0)
        tokens = draw.randint(1, 60)
        inside = [grant for grant in grants if grant[0] + 60.0 > clock.s]
        fits = len(inside) < 40 and sum(grant[1] for grant in inside) + tokens <= 900 and len(running) < 50
        try:
            reservation = await limiter.reserve(caller, tokens)
        except LimitExceeded:
            assert not fits
            refused += 1
            return
        assert fits
        grants.append([clock.s, tokens])
        running.append((reservation, grants[-1]))

    async def play() -> None:
        for _ in range(300):
            clock.s += draw.choice([0.0, 0.25, 1.0, 7.5, 30.0])
            await asyncio.gather(*(client() for _ in range(64)))
            for _ in range(draw.randint(0, len(running))):
                reservation, grant = running.pop(draw.randrange(len(running)))
                grant[1] = draw.randint(0, int(grant[1]))
                reservation.settle(int(grant[1]))
            inside = [grant for grant in grants if grant[0] + 60.0 > clock.s]
            headers = limiter.headers(caller)
            assert headers["x-ratelimit-remaining-requests"] == str(40 - len(inside))
            assert headers["x-ratelimit-remaining-tokens"] == str(900 - sum(int(grant[1]) for grant in inside))

    asyncio.run(play())
    assert refused > 1000
    assert len(grants) > 1000


def test_idle_callers_are_forgotten():
    """Subjects of tokens have no bound: after a minute 1,000 of them leave no more than the ones that run."""
    clock = Clock()
    limiter = Limiter(clock=clock)
    kept = _reserve(limiter, _caller("kept", parallel=1))
    for k in range(1000):
        _reserve(limiter, _caller(f"user-{k}", requests_per_minute=5)).settle(1)
    clock.s += 61
    for k in range(1001):
        _reserve(limiter, _caller("other" if k % 2 else "another")).settle(1)
    assert len(limiter._usages) <= 4
    assert _refusal(limiter, _caller("kept", parallel=1)).kind == "parallel"
    kept.settle(1)
    _reserve(limiter, _caller("kept", parallel=1))


def test_a_budget_survives_a_restart(tmp_path: Path):
    """70 of 100 for the day, in a second process 30 fit and 31 do not; the next day is new, the month is not."""
    clock = Clock()
    caller = _caller(tokens_per_day=100, tokens_per_month=120)
    before = TokenBudgets(tmp_path / "budgets.db")
    _reserve(Limiter(before, clock=clock, now=clock.now), caller, 90).settle(70)
    before.close()
    after = TokenBudgets(tmp_path / "budgets.db")
    limiter = Limiter(after, clock=clock, now=clock.now)
    refusal = _refusal(limiter, caller, 31)
    assert (refusal.kind, refusal.code) == ("tokens_per_day", "insufficient_quota")
    assert refusal.retry_after_s == 3600  # 23:00 to midnight, UTC
    assert "30 are left of 100 for 2026-11-30 (UTC)" in refusal.message
    _reserve(limiter, caller, 30).settle(30)
    clock.s += 3600  # December: day and month are new
    _reserve(limiter, caller, 100).settle(100)
    clock.s += 24 * 3600
    refusal = _refusal(limiter, caller, 21)
    assert refusal.kind == "tokens_per_month"
    assert refusal.retry_after_s == 30 * 24 * 3600  # 2 December to 1 January
    assert _refusal(limiter, caller, 121).retry_after_s is None
    _reserve(limiter, caller, 20)
    after.close()


def test_a_reservation_that_a_crash_ends_stays_counted(tmp_path: Path):
    """Too many tokens are counted, never too few; and a refund goes to the day of its reservation."""
    clock = Clock()
    caller = _caller(tokens_per_day=100)
    with_crash = TokenBudgets(tmp_path / "budgets.db")
    _reserve(Limiter(with_crash, clock=clock, now=clock.now), caller, 60)
    budgets = TokenBudgets(tmp_path / "budgets.db")
    limiter = Limiter(budgets, clock=clock, now=clock.now)
    assert _refusal(limiter, caller, 41).kind == "tokens_per_day"
    overnight = _reserve(limiter, caller, 40)
    clock.s += 3600
    overnight.settle(10)
    assert (budgets.used("shop", "2026-11-30"), budgets.used("shop", "2026-12-01")) == (70, 0)
    with_crash.close()
    budgets.close()


def test_a_budget_without_a_file_is_an_error():
    """It is not ignored."""
    with pytest.raises(RuntimeError, match="key shop has a token budget"):
        _reserve(Limiter(clock=Clock()), _caller(tokens_per_day=1))
