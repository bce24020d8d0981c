"""Terminal output: text printed without markup, and the progress of a run."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from grpo import progress
from grpo.errors import printable

_RUNS = ("prefect.flow_runs", "prefect.task_runs")
_EVENTS = "prefect.events.clients"
_SILENT_S = 30.0
"""Longest time between two lines of progress, if a stage reports any."""
_ROLLOUTS = ("rollout", "rollout_window")
_ITERATION = (*_ROLLOUTS, "score", "train")
"""Stages of an iteration. The rollouts after the last iteration belong to the evaluation."""
_SHOWN = ("reward", "success", "loss")
_ENDS = ("Finished in state", "Encountered exception during", "Task run failed with", "Crash detected")


class PlainConsole(Console):
    """A console that interprets no markup, because names, paths, records and messages may contain `[/x]` or `:smile:`.

    Control characters are escaped, so that no text moves the cursor or colours the screen. Styles are given as `Text`.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> None:
        super().__init__(stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        """See `Console.on_broken_pipe`, which would end the process as an error of the user's code."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def render_str(self, text: str, **options: object) -> Text:
        """See `Console.render_str`. All strings and cells of tables pass through it."""
        return super().render_str(printable(text), **options)  # type: ignore[arg-type]


class _OnceFilter(logging.Filter):
    """Drop the final log line of a task and of its flow, because the command prints it, and the server has all of it.

    If an unreachable server does not take events, only the first warning about it is shown.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lost_events = False

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if record.name == _EVENTS:
            first, self._lost_events = not self._lost_events, True
            return first
        return not (record.name.startswith(_RUNS) and record.getMessage().startswith(_ENDS))


def _dropped(record: logging.LogRecord) -> bool:
    return False


def _log_failures_once() -> None:
    """Show a failure once in the terminal, at the end of the command."""
    if logging.getLogger("grpo_flows").level == logging.DEBUG:
        return
    logging.raiseExceptions = False  # otherwise a log that cannot be sent writes its own traceback
    logging.getLogger("prefect._internal.concurrency").addFilter(_dropped)  # otherwise each event does so, too
    for handler in (*logging.getLogger().handlers, *logging.getLogger("prefect").handlers):
        shown = type(handler).__name__ == "PrefectConsoleHandler"
        if shown and not any(isinstance(known, _OnceFilter) for known in handler.filters):
            handler.addFilter(_OnceFilter())


@contextmanager
def show_progress(console: Console, *, iterations: int = 0) -> Iterator[None]:
    """Show progress bars while the block runs, with one for the `iterations` if there are any.

    Without a terminal it prints one line for each iteration, one for each stage outside of iterations, and one after
    half a minute without a line. With GRPO_DEBUG=1 every stage also has a line when it begins.
    """
    _log_failures_once()
    if not console.is_terminal:
        with progress.observed(_ProgressLines(console, iterations)):
            yield
        return
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<12}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[numbers]}", style="dim", markup=False),
        console=console,
    )
    known: dict[str, TaskID] = {}
    guard = threading.Lock()
    updates = 0

    def watch(stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        nonlocal updates
        with guard:
            if _ends_iteration(stage, numbers):
                updates += 1
                bars.update(overall, completed=updates)
            if stage not in known:
                known[stage] = bars.add_task(stage, total=total, numbers="")
            text = " ".join(f"{name} {value:.3g}" for name, value in numbers.items())
            bars.update(known[stage], completed=done, total=total, numbers=text)

    overall = bars.add_task("iterations", total=iterations, numbers="", visible=iterations > 0)
    with bars, progress.observed(watch):
        yield


class _ProgressLines:
    """Progress as plain lines: `iteration 3 of 12: reward 0.531, about 90 s left`."""

    def __init__(self, console: Console, iterations: int) -> None:
        self._console, self._iterations, self._updates = console, iterations, 0
        self._numbers: dict[str, float] = {}
        """Reward, success and loss of the present iteration."""
        self._announced: set[str] = set()
        """Stages that the executor has announced. Each has ended only when the executor reports its results."""
        self._started_at = self._shown_at = time.monotonic()
        self._has_rollouts = False
        self._every = os.environ.get("GRPO_DEBUG") == "1"
        self._guard = threading.Lock()

    def __call__(self, stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        with self._guard:
            if stage in _ROLLOUTS and not self._has_rollouts:
                self._has_rollouts, self._started_at = True, time.monotonic()  # stages before it are not repeated
            if done == 0:
                self._announced.add(stage)
            in_iteration = stage in _ITERATION and self._updates < self._iterations
            if in_iteration:
                self._numbers |= {name: value for name, value in numbers.items() if name in _SHOWN}
            ended = "cached" in numbers or (done == total > 0 and stage not in self._announced)
            if in_iteration and _ends_iteration(stage, numbers):
                self._updates += 1
                self._print(self._iteration())
                self._numbers = {}
            elif (
                (ended and not in_iteration)
                or (done == 0 and self._every)
                or time.monotonic() - self._shown_at > _SILENT_S
            ):
                self._print(_stage_line(stage, done, total, numbers))

    def _print(self, line: str) -> None:
        self._shown_at = time.monotonic()
        self._console.print(line, soft_wrap=True)

    def _iteration(self) -> str:
        elapsed = time.monotonic() - self._started_at
        left = elapsed / self._updates * max(0, self._iterations - self._updates)
        numbers = "".join(f"{name} {value:.4g}, " for name, value in self._numbers.items())
        return f"iteration {self._updates} of {self._iterations}: {numbers}about {left:.0f} s left"


def _stage_line(stage: str, done: int, total: int, numbers: dict[str, float]) -> str:
    """`rollout 60/128`, or the numbers of a stage that has ended: `score: reward 0.4922`, `split: cached`."""
    text = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items() if name != "cached")
    if "cached" not in numbers:
        return f"{stage} {done}/{total} {text}".rstrip()
    return f"{stage}: {text or ('cached' if numbers['cached'] else 'done')}"


def _ends_iteration(stage: str, numbers: dict[str, float]) -> bool:
    """True for the end of an update, also if it was a cache hit."""
    return stage == "train" and "cached" in numbers
