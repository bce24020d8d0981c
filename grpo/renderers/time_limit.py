"""Time limit for Python code in the current thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Expired(BaseException):
    """Expiry of the limit; not an `Exception`, which the code in the block might catch."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` if the block takes longer.

    Python code is interrupted between two bytecode instructions; a long call into an extension is not.
    """
    thread, lock, finished = ctypes.c_ulong(threading.get_ident()), threading.Lock(), threading.Event()
    interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def expire() -> None:
        with lock:
            if not finished.is_set():
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
                finished.set()
                interrupt(thread, None)  # clears an exception that is pending
            timer.join()
    except _Expired:
        raise TimeoutError(f"not done after {seconds:g} s") from None
