"""Ctrl-C, SIGTERM and SIGHUP while a stage runs, and time limits for code that blocks.

Python runs the handler of a signal between two instructions of the main thread. That is not enough to end a stage.
asyncio turns the first Ctrl-C into a cancellation, which code that blocks the event loop never sees. If an exception
interrupts one of many waiting episodes, the next one may block. An extension such as a tokenizer may never return.
So this module notes a signal, interrupts the main thread, and lets no further user code start. If the process is still
inside a stage after `GRACE_S`, it ends at once. Handlers that others have installed stay in place, because a cancelled
run of Prefect ends as cancelled only if the handler of SIGTERM is Prefect's own. Otherwise it ends as crashed.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

GRACE_S = 8.0
"""Seconds that a stage has to end after a signal, before the process is ended."""
END_S = 20.0
"""Seconds that a command has after an interrupted stage, to stop servers and to wait for its threads."""
_WAKE_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WAKE = signal.SIGURG
"""Signal that only interrupts a call in which the main thread waits."""


class Blocked(BaseException):
    """Expiry of `time_limit`. It is not an `Exception`, because the code that blocks might catch one."""


class Stopped(SystemExit):
    """End of the process by SIGTERM or SIGHUP. Its code is 128 plus the signal's number."""


class _State:
    """Signal that was received while a stage ran, in this process."""

    signum: int | None = None
    received: int | None = None
    """Pipe to which the interpreter writes the number of each signal while a stage runs."""
    is_command = False
    expired = False
    """A `time_limit` has expired, and its block is ending."""
    limit: time_limit | None = None
    """The `time_limit` of the main thread."""


_state = _State()
_noting = threading.Lock()


def end_by_signals() -> None:
    """Let SIGTERM and SIGHUP end this process, a command, as Ctrl-C does. After any of them, it ends within `END_S`.

    SIGHUP comes when the terminal closes. `nohup` ignores it, and then it stays ignored.
    """
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, stop)
    _state.is_command = True


def stop(signum: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal: end the process with its exit code, after the `finally` blocks."""
    raise Stopped(128 + signum)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    """Do the same as Python's own handler. `asyncio.run` replaces only Python's handler, so it keeps this one."""
    raise KeyboardInterrupt


def _wake(signum: int, frame: FrameType | None) -> None:
    """Do nothing. A signal interrupts a call only because it has a handler."""


_HANDLERS = {signal.SIGINT: _interrupt, signal.SIGTERM: stop, signal.SIGHUP: stop, _WAKE: _wake}
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


def stopping() -> bool:
    """True after Ctrl-C, SIGTERM or SIGHUP, until the stages that were interrupted have ended."""
    _note_signals()
    return _state.signum is not None


def ending() -> bool:
    """True while `check` ends tasks."""
    return stopping() or _state.expired


def check() -> None:
    """End this task or thread if the process or a block with a time limit is ending.

    It is called before user code is entered, so that the next of many episodes does not block as well.
    """
    if not ending():
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise KeyboardInterrupt from None
    raise asyncio.CancelledError("what this task belongs to is ending")


@contextmanager
def stoppable() -> Iterator[None]:
    """Let these signals interrupt the block, and end the process if the block does not end within `GRACE_S`.

    The main thread raises the exception of a handler that others have installed, or else `KeyboardInterrupt` or
    `Stopped`. It does so as well if code in the block has caught that exception and `check` then ended its task. In
    another thread the block runs unchanged, because signals belong to the main thread.
    """
    if threading.current_thread() is not threading.main_thread() or _state.received is not None:
        yield
        return
    previous = {signum: signal.getsignal(signum) for signum in _HANDLERS}
    previous = {signum: handler for signum, handler in previous.items() if handler in _DEFAULTS}
    received, sent = os.pipe()
    for end in (received, sent):
        os.set_blocking(end, False)
    _state.received, _state.signum = received, None
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(received, ended), name="signals", daemon=True)
    watcher.start()
    for signum in previous:
        signal.signal(signum, _HANDLERS[signum])
    wakeup = signal.set_wakeup_fd(sent, warn_on_full_buffer=False)
    try:
        yield
    except asyncio.CancelledError:
        handler = signal.getsignal(_state.signum) if stopping() and _state.signum is not None else None
        if callable(handler):
            handler(_state.signum, None)
        raise
    finally:
        ended.set()
        if _state.is_command and stopping():  # a thread that never ends would keep the interpreter
            last = threading.Timer(END_S, os._exit, (128 + (_state.signum or 0),))
            last.daemon = True
            last.start()
        signal.set_wakeup_fd(wakeup)
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        os.close(sent)  # ends the watcher
        watcher.join()
        with _noting:
            _state.received, _state.signum = None, None
            os.close(received)


def _note_signals() -> bool:
    """Take note of the signals that have arrived. Returns False if the block has ended.

    A caller reads them itself, because it may see the exception of a handler before the watcher's thread runs.
    """
    with _noting:
        while _state.received is not None:
            try:
                numbers = os.read(_state.received, 64)
            except BlockingIOError:
                return True
            if not numbers:
                break
            _state.signum = next((number for number in numbers if number in _SIGNALS), _state.signum)
        return False


def _watch(received: int, ended: threading.Event) -> None:
    """End the process if a stage is still running `GRACE_S` after a signal.

    The interpreter writes the number of each signal to the pipe as soon as it arrives, also while the main thread is in
    an extension.
    """
    while select.select([received], [], []) and _note_signals():
        if (signum := _state.signum) is not None:
            if not ended.wait(_WAKE_S):  # if another thread got the signal, nothing has woken the main thread
                signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)
            if not ended.wait(GRACE_S):
                name = signal.Signals(signum).name
                with suppress(OSError, ValueError):  # its terminal was closed
                    sys.stderr.write(
                        f"{name}: a stage did not end within {GRACE_S:g} s, so the process is ended. Run the command "
                        "again: finished stages are in the cache\n"
                    )
                    sys.stderr.flush()
                os._exit(128 + signum)
            return


class time_limit:
    """Raise `Blocked` with this message in the code that the main thread runs, if it is not renewed for `seconds`.

    It is for code that blocks the event loop, because `asyncio.timeout` cannot end such code. It works only in the main
    thread, and does nothing in another thread.
    """

    def __init__(self, seconds: float, message: str) -> None:
        self.seconds, self._message = seconds, message
        self._is_main = threading.current_thread() is threading.main_thread()
        self._previous: Any = None

    def __enter__(self) -> time_limit:
        if self._is_main:
            self._previous = signal.signal(signal.SIGALRM, self._expire)
            _state.limit = self
            self.renew()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._previous)
            _state.expired, _state.limit = False, None

    def renew(self) -> None:
        """Count from now, unless it has expired."""
        if self._is_main and not _state.expired:
            signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)

    def _expire(self, signum: int, frame: FrameType | None) -> None:
        _state.expired = True
        raise Blocked(self._message)


def renew() -> None:
    """Count the `time_limit` of the main thread from now, if this is the main thread and it has one."""
    if _state.limit is not None and threading.current_thread() is threading.main_thread():
        _state.limit.renew()
