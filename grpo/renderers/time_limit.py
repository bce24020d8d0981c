"""A time limit on Python code that runs in this thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Expired(BaseException):
    """Raised inside the block; not an `Exception`, which the code in it might catch."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` where the block takes longer.

    Loops of Python code are interrupted between two instructions; one long call into another language is not.
    """
    thread, lock, over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), threading.Event()
    interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def expire() -> None:
        with lock:
            if not over.is_set():
                interrupt(thread, ctypes.py_object(_Expired))

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                over.set()
                interrupt(thread, None)  # what was raised and has not arrived
            timer.join()
    except _Expired:
        raise TimeoutError(f"not done after {seconds:g} s") from None
