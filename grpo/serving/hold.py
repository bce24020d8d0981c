"""Room that an admitted request takes, until its last task has ended and its handler has left it.

admitted ── tasks: choices, their entries in the log ──► all ended ─┐
   └────── handler: limits, response ──────────────────► left ──────┴► released, its tokens settled
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from grpo.errors import GRPOError
from grpo.serving.limits import Reservation

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Hold:
    """Room of one request. `tasks` are all tasks of the server, `released` gives the room back."""

    def __init__(self, tasks: set[asyncio.Task[Any]], released: Callable[[], None]) -> None:
        self.reservation: Reservation | None = None
        """Reservation of the caller's tokens, settled with those that were used."""
        self.used_tokens = 0
        self._tasks, self._released = tasks, released
        self._open = 1  # the handler
        self._left = False

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a part of the request in a task, which is finished also where the client goes away."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        self._open += 1
        task.add_done_callback(self._ended)
        return task

    def leave(self) -> None:
        """End of the handler; later calls do nothing."""
        if not self._left:
            self._left = True
            self._close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._close()

    def _close(self) -> None:
        self._open -= 1
        if self._open:
            return
        self._released()
        if self.reservation is not None:
            try:
                self.reservation.settle(self.used_tokens)
            except GRPOError as error:  # the turn is answered and in the log
                logger.error("tokens of a request were not refunded: %s", error)
