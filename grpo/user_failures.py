"""Exceptions of code that this project calls and did not write: rewards, environments, tools, agents, models' code.

Such code may raise anything: `SystemExit` in the middle of a reward would end the process with exit code 0 and without
a result, and a `KeyboardInterrupt` that nobody typed would look like Ctrl-C. At each call into such code, `user_code`
turns what it raises into one `UserCodeError` with one sentence. An exception passes through if it did not come from
that code: errors of this project, Ctrl-C, SIGTERM, and a cancellation of the task.
"""

from __future__ import annotations

import asyncio
import dis
import os
import sysconfig
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from grpo import interrupts
from grpo.errors import GRPOError, printable
from grpo.strict_json import clean_text

_LONGEST = 300
_LIBRARIES = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<frozen")
_PROJECT = f"{Path(__file__).parent}{os.sep}"
_RAISE = dis.opmap["RAISE_VARARGS"]


current_scenario: ContextVar[str | None] = ContextVar("current_scenario", default=None)
"""Id of the scenario that is played in this task, for messages about code that does not know it."""


class UserCodeError(GRPOError):
    """Code of the user raised an exception. The message says which one, and where."""


REMEDY = "Correct it, and try it with `grpo train CONFIG --dry-run` or a test of your own"
"""What to do about an exception of an environment or an agent."""


class user_code:
    """Turn an exception that the block's code raises into `error`, with the place and the remedy in its message.

    `what` names what was called, e.g. "reward polite". If it is empty, the message begins with the exception. Errors of
    this project pass through, and so do errors that `passes` accepts or that end the task or the process from outside.
    If `transient` is True, a failed connection and a timeout keep their type, so that the stage is tried again.
    """

    def __init__(
        self,
        what: str,
        *,
        remedy: str = "",
        error: type[GRPOError] = UserCodeError,
        passes: Callable[[BaseException], bool] = lambda error: False,
        transient: bool = False,
    ) -> None:
        self._what, self._remedy, self._error, self._passes = what, remedy, error, passes
        self._transient = transient

    def __enter__(self) -> None:
        interrupts.check()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if raised is None or isinstance(raised, GRPOError) or self._passes(raised):
            return
        remedy = f". {self._remedy}" if self._remedy else ""
        if isinstance(raised, interrupts.Blocked):
            raise self._error(f"{self._what} {raised}{place_of(raised)}{remedy}") from raised
        if is_from_outside(raised):
            return
        message = f"{self._what} raised {describe(raised)}{remedy}" if self._what else f"{describe(raised)}{remedy}"
        if self._transient and isinstance(raised, (ConnectionError, TimeoutError)):
            raise (TimeoutError if isinstance(raised, TimeoutError) else ConnectionError)(message) from raised
        raise self._error(message) from raised


def guard_tasks() -> None:
    """Turn `SystemExit` in tasks that this task or its tasks start into their error, so that it does not end the loop.

    asyncio raises a task's `SystemExit` and `KeyboardInterrupt` out of the loop, even if the task is awaited.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_start)
    _guarded.set(True)


def _start(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """Task factory of `guard_tasks`."""
    return asyncio.Task(_in_guard(work) if _guarded.get() else work, loop=loop, **options)


async def _in_guard(work: Any) -> Any:
    with user_code("a task", passes=lambda error: not isinstance(error, (SystemExit, KeyboardInterrupt))):
        return await work


_guarded: ContextVar[bool] = ContextVar("guarded", default=False)


def reason_of(failure: BaseException) -> str:
    """Reason of a run's failure: that it was stopped, a `GRPOError`'s message, or another error's type and text."""
    if not isinstance(failure, Exception) and interrupts.stopping():
        return "it was stopped before its end. The same command goes on after the last stage that was finished"
    text = str(failure).strip()
    return text if isinstance(failure, GRPOError) and text else f"{type(failure).__name__}: {text}".rstrip(": ")


def is_exception(error: BaseException) -> bool:
    """True for an `Exception`. `user_code(passes=is_exception)` turns only errors that would end the process."""
    return isinstance(error, Exception)


def is_from_outside(error: BaseException) -> bool:
    """True if the exception ends a task or the process from outside: Ctrl-C, SIGTERM, a timeout, a cancellation.

    False if the code raises a `KeyboardInterrupt` or `CancelledError` itself.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, (interrupts.Blocked, interrupts.Stopped)) or interrupts.ending():
        return True
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return False
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt) and not _is_raised_by_code(error)


def describe(
    error: BaseException, *, with_place: bool = True, in_project: bool = False, longest: int = _LONGEST
) -> str:
    """One line of an exception: type, message and place, without control characters, of bounded length.

    For a group, it describes the first exception. The place is in the code that was called, not in a library that this
    code calls. If `in_project` is True, it may also be in this project.
    """
    others, raised = "", error
    while isinstance(error, BaseExceptionGroup):
        others = f" and {len(error.exceptions) - 1} more" if len(error.exceptions) > 1 else others
        error = error.exceptions[0]
    try:
        message = str(error)
    except BaseException as second:
        if is_from_outside(second):
            raise
        message = f"its message raises {type(second).__name__}"
    name = on_one_line(type(error).__name__)
    text = on_one_line(message, longest=longest)
    place = (place_of(error, in_project=in_project) or place_of(raised, in_project=in_project)) if with_place else ""
    return f"{name}: {text}{others}{place}" if text else f"{name}{others}{place}"


def place_of(error: BaseException, *, in_project: bool = False) -> str:
    """File, line and function in which an exception was raised, ` (reward.py:12, polite)`, see `describe`."""
    frame = _place(error, _LIBRARIES if in_project else (*_LIBRARIES, _PROJECT))
    if frame is None:
        return ""
    return f" ({printable(Path(frame[0].co_filename).name)}:{frame[1]}, {frame[0].co_name})"


def source_line(error: BaseException) -> str:
    """Path and line in the user's code at which an exception was raised, `/shop/tools.py:12`, see `describe`."""
    frame = _place(error, (*_LIBRARIES, _PROJECT))
    return "" if frame is None else f"{printable(frame[0].co_filename)}:{frame[1]}"


_LONG_INTEGER = 10**30


def shown(value: object) -> str:
    """Text for a message about a value that the user's code returned: None or a number itself, else its type.

    Python refuses to write an integer of more than 4300 digits, so that a long one is described.
    """
    if isinstance(value, int) and abs(value) >= _LONG_INTEGER:
        return "an integer of more than 30 digits"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    return f"a value of type {on_one_line(type(value).__name__)}"


def on_one_line(text: str, *, longest: int | None = None) -> str:
    r"""The text on one line, with control characters as escapes: `\x1b[2J` instead of an empty screen.

    Halves of surrogate pairs become U+FFFD, because UTF-8 cannot hold them. A text longer than `longest` is cut.
    """
    cut = longest is not None and len(text) > longest
    return printable(" ".join(clean_text(text[:longest]).split())) + ("…" if cut else "")


def _frames(error: BaseException) -> Iterator[tuple[CodeType, int, int]]:
    """Code, line and position of each frame, the outermost first. A deep recursion has thousands."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lineno, trace.tb_lasti
        trace = trace.tb_next


def _place(error: BaseException | None, libraries: tuple[str, ...]) -> tuple[CodeType, int] | None:
    """Innermost frame in the code that was called, of the exception or its cause, or else the innermost of all."""
    fallback = None
    while error is not None:
        last, own = None, None
        for code, line, _ in _frames(error):
            last = (code, line)
            if not code.co_filename.startswith(libraries):
                own = last
        if own is not None:
            return own
        fallback, error = fallback or last, error.__cause__
    return fallback


def _is_raised_by_code(error: BaseException) -> bool:
    """Return True if a statement `raise` has raised it, because a signal interrupts at any other instruction."""
    frames = list(_frames(error))
    if not frames:
        return True
    code, _, position = frames[-1]
    if code.co_filename.endswith(("asyncio/runners.py", "grpo/interrupts.py")):  # the handlers of Ctrl-C
        return False
    return code.co_code[position] == _RAISE
