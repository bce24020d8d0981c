"""Ctrl-C, SIGTERM and SIGHUP in processes that are busy in each way that a stage can be."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from grpo import interrupts
from grpo.user_failures import UserCodeError, user_code
from tests.places import ROOT

PROLOGUE = """
import asyncio, concurrent.futures, hashlib, signal, sys, threading, time
from grpo import interrupts
from grpo.user_failures import user_code
interrupts.GRACE_S = interrupts.END_S = 1.0
interrupts.end_by_signals()
started = lambda: print("started", flush=True)

async def episodes(block):
    async def episode():
        with user_code("an episode"):
            started()
            block()
    await asyncio.gather(*(episode() for _ in range(100)))

def swallow():
    started()
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass

async def catch_once():
    try:
        started()
        time.sleep(1000)
    except BaseException:
        pass
    with user_code("an episode"):
        pass

def in_thread():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(lambda: (started(), time.sleep(1000))).result()

with interrupts.stoppable():
"""
BUSY = {
    "asleep": "started(); time.sleep(1000)",
    "in a loop": "started(); exec('while True: pass')",
    "waiting for a lock": "started(); lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "waiting in an event loop": "asyncio.run(asyncio.wait_for((started(), asyncio.Event())[1].wait(), 1000))",
    "in one of many episodes that block": "asyncio.run(episodes(lambda: time.sleep(1000)))",
    "in code that catches everything": "swallow()",
    "in a task that catches it and goes on": "asyncio.run(catch_once())",
    "waiting for a thread": "in_thread()",
    "in an extension": "started(); hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)",
}


@contextmanager
def started(busy: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a stage that is busy in this way. It is killed after the block."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{PROLOGUE}    {BUSY[busy]}\n"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "started\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, (130, -2)), (signal.SIGTERM, (143,)), (signal.SIGHUP, (129,))]
)
def test_a_signal_ends_a_stage_wherever_it_is(busy: str, signum: signal.Signals, code: tuple[int, ...]):
    """With the exit code of the signal, by an exception or, where none is seen, by the end of the process."""
    with started(busy) as child:
        child.send_signal(signum)
        _, error = child.communicate(timeout=240)
    assert child.returncode in code, error


def test_a_blocked_stage_is_ended_also_if_nobody_reads_its_errors():
    """As after its terminal has closed: the last words cannot be written."""
    with started("in code that catches everything") as child:
        assert child.stderr is not None
        child.stderr.close()
        child.send_signal(signal.SIGHUP)
        assert child.wait(timeout=240) == 129


def test_a_command_under_nohup_goes_on_when_its_terminal_closes():
    """`nohup` starts it with SIGHUP ignored."""
    code = "import signal; from grpo import interrupts; interrupts.end_by_signals(); signal.raise_signal(signal.SIGHUP)"
    for prefix, expected in ((["nohup"], 0), ([], 129)):
        child = subprocess.run([*prefix, sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
        assert child.returncode == expected


def test_a_process_goes_on_after_a_block_that_was_interrupted(monkeypatch: pytest.MonkeyPatch):
    """As a notebook does: its next block is not ended by the signal of the last one."""
    monkeypatch.setattr(interrupts._state, "is_command", False)
    with pytest.raises(KeyboardInterrupt), interrupts.stoppable():
        signal.raise_signal(signal.SIGINT)
    assert not interrupts.stopping()
    with interrupts.stoppable():
        interrupts.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_of_another_stays_in_place_and_its_exception_is_from_outside():
    """As Prefect's, by which a worker knows that it can cancel the run; that of the code itself is the code's."""

    class Ended(BaseException):
        pass

    def end(signum: int, frame: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(Ended), interrupts.stoppable(), user_code("a tool"):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(UserCodeError, match="a tool raised Ended"), interrupts.stoppable(), user_code("a tool"):
            raise Ended
        with interrupts.stoppable():
            assert signal.getsignal(signal.SIGTERM) is end
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_block_in_another_thread_leaves_signals_alone():
    """They belong to the main thread."""
    seen: list[object] = []

    def run() -> None:
        with interrupts.stoppable():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_code_that_blocks_is_ended_by_its_time_limit():
    """In the main thread, in the middle of what it does; code that the limit is renewed for goes on."""
    with pytest.raises(interrupts.Blocked, match="too long"), interrupts.time_limit(0.05, "too long"):
        threading.Event().wait()
    with interrupts.time_limit(60, "too long") as limit:
        limit.renew()
