"""Time limit for Python code in the current thread."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_WALL = 20
"""Seconds on the clock per second of the limit after which even code that only waits is interrupted."""
_PAUSE_S = 0.01
_AGAIN_S = 0.5
"""Further processor time after which the block is interrupted again. An interruption is lost if it meets a callback of
the garbage collector, because Python ignores errors there."""


class _Expired(BaseException):
    """Expiry of the limit. It is not an `Exception`, because the code in the block might catch that."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` if the block computes for longer than `seconds`.

    Only the thread's processor time counts, so that a busy machine does not matter. After 20 times as long on the clock
    the block is ended in any case. Python code is interrupted between two bytecode instructions, but a long call into
    an extension cannot be interrupted. The block may have limits inside, each of which raises only its own error.
    """
    thread, lock = threading.get_ident(), threading.Lock()
    finished, expired = threading.Event(), threading.Event()
    interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
    clock = _thread_clock(thread)

    def watch() -> None:
        due, end = clock() + seconds, time.monotonic() + _WALL * seconds
        while not finished.wait(max(due - clock(), _PAUSE_S)):
            with lock:
                if finished.is_set():
                    return
                if clock() >= due or time.monotonic() >= end:
                    expired.set()
                    interrupt(ctypes.c_ulong(thread), ctypes.py_object(_Expired))
                    due, end = clock() + _AGAIN_S, time.monotonic() + _WALL * _AGAIN_S

    def stop() -> None:
        with lock:
            finished.set()
            if expired.is_set():
                # clears a pending exception. If none is pending, CPython 3.11 would look for one forever after
                interrupt(ctypes.c_ulong(thread), None)
        watcher.join()

    watcher = threading.Thread(target=watch, name="time limit", daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            stop()
    except _Expired:
        stop()  # an interruption may also have met the first one
        if not expired.is_set():
            raise  # the limit of a block around this one has expired
        raise TimeoutError(f"not done after {seconds:g} s") from None


def _thread_clock(thread: int) -> Callable[[], float]:
    """Function that returns a thread's processor time in seconds, or the clock's if the system has no thread clock."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)
