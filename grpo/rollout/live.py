"""Continuous rollouts of this process, which go on in a thread while their windows are trained on.

A run takes one window after another, and the rollout has to stay alive between them. When a run has taken window k, the
rollout is kept under the key of this window, and the request for window k + 1 looks it up by that key. If the run was
resumed in another process, the rollout has ended with the earlier process. A new rollout then begins with the groups
that window k lists as unfinished.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from grpo.policy.policy import Policy
from grpo.policy.servers.server import WrongWeights
from grpo.reads.recording import StageReads
from grpo.rollout.collect import first_failure
from grpo.rollout.continuous import ContinuousRollout
from grpo.rollout.windows import Window
from grpo.user_failures import REMEDY, is_exception, user_code


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWindow:
    """A window, with what the user's code has read from the beginning of the rollout until the window was closed."""

    window: Window
    reads: dict[str, str | None]
    """Digests by name, see `grpo.reads.names`."""
    unseen: tuple[str, ...]
    """Ways in which something was read that cannot be seen."""


class LiveRollout:
    """A continuous rollout in a thread of its own, with an event loop of its own.

    `recording` records what the user's code reads in this thread. Files in the folders `exclude` are not inputs.
    """

    def __init__(
        self,
        rollout: ContinuousRollout,
        recording: AbstractContextManager[StageReads | None],
        *,
        exclude: tuple[Path, ...] = (),
    ) -> None:
        self._rollout, self._recording, self._exclude = rollout, recording, exclude
        self._windows: SimpleQueue[RecordedWindow | BaseException] = SimpleQueue()
        self._failure: BaseException | None = None
        """Error that has ended the rollout."""
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._taken: tuple[float, float] | None = None
        """Time at which the last window was taken, and the seconds for which the rollout had been busy until then."""
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="continuous rollout", daemon=True)
        self._thread.start()
        self._started.wait()

    def publish(self, policy: Policy) -> None:
        """Let the rollout generate with the next version of the policy."""
        self._call(lambda: self._rollout.publish(policy))

    def take(self) -> tuple[RecordedWindow, float | None]:
        """Wait for the next window. Raises the error that ended the rollout, after the windows that were closed before.

        Raises `WrongWeights` at once, because windows that were closed before may have such turns as well. Windows that
        were taken earlier are trained on already.

        The second value is the share of the time since the window before in which episodes were in progress while the
        caller was busy elsewhere, e.g. with training. It is None for the first window.
        """
        asked = self._clock()
        window = self._windows.get()
        if isinstance(self._failure, WrongWeights):
            raise self._wrong_weights(self._failure)
        if isinstance(window, BaseException):
            raise window
        before, self._taken = self._taken, self._clock()
        return window, None if before is None else (asked[1] - before[1]) / (self._taken[0] - before[0])

    def _wrong_weights(self, failure: WrongWeights) -> WrongWeights:
        """The failure, with what becomes of the windows that were taken before."""
        if self._taken is None:
            return failure
        return WrongWeights(
            f"{failure}. Earlier windows may have such turns as well, and are not collected again, because they were "
            "trained on. To train without them, correct the server and run again with another seed"
        )

    def close(self) -> None:
        """End the rollout, and wait for its thread."""
        self._call(self._cancel)
        self._thread.join()

    def _call(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed after an error, which `take` raises
            self._loop.call_soon_threadsafe(function)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _clock(self) -> tuple[float, float]:
        return time.perf_counter(), self._rollout.busy_s

    def _run(self) -> None:
        try:
            with (
                asyncio.Runner(loop_factory=lambda: self._loop) as runner,
                self._recording as reads,
                user_code("an episode", remedy=REMEDY, passes=_passes),
            ):
                runner.run(self._main(reads))
        except BaseException as error:  # noqa: BLE001 - who waits for the next window raises it
            self._failure = first_failure(error)
            self._windows.put(self._failure)
        finally:
            self._started.set()

    async def _main(self, reads: StageReads | None) -> None:
        self._task = asyncio.current_task()
        self._started.set()
        await self._rollout.run(lambda window: self._windows.put(self._recorded(window, reads)))

    def _recorded(self, window: Window, reads: StageReads | None) -> RecordedWindow:
        if reads is None:
            return RecordedWindow(window=window, reads={}, unseen=())
        return RecordedWindow(window=window, reads=reads.digests(exclude=self._exclude), unseen=tuple(reads.unseen))


def _passes(error: BaseException) -> bool:
    """True for errors that the stage raises as they are, and for the end of a rollout by `close`."""
    return is_exception(error) or isinstance(error, asyncio.CancelledError)


class LiveRollouts:
    """Rollouts that go on in this process, by the key of their last window that was taken."""

    def __init__(self) -> None:
        self._rollouts: dict[str, LiveRollout] = {}

    def keep(self, window: str, rollout: LiveRollout) -> None:
        """Let a rollout go on after a window, until it is claimed or ended. Another one after this window is ended."""
        self.end(window)
        self._rollouts[window] = rollout

    def claim(self, window: str) -> LiveRollout | None:
        """The rollout that goes on after a window, or None. The caller must keep or close it."""
        return self._rollouts.pop(window, None)

    def end(self, window: str) -> None:
        """End the rollout that goes on after a window, if there is one."""
        rollout = self.claim(window)
        if rollout is not None:
            rollout.close()


live_rollouts = LiveRollouts()
