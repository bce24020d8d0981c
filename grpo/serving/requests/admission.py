"""Capacity of an admitted request, which is released after its last task has ended and its handler has left.

admitted ── tasks: choices, their entries in the log ──► all ended ─┐
   └────── handler: limits, response ──────────────────► left ──────┴► released, its tokens settled
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from grpo.errors import GRPOError
from grpo.serving.access.limits import Reservation
from grpo.serving.protocol.api_errors import APIError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Admission:
    """Capacity of one request. `tasks` are all tasks of the server, and `released` gives the capacity back."""

    def __init__(
        self, tasks: set[asyncio.Task[Any]], released: Callable[[Admission], None], *, begun: datetime
    ) -> None:
        self.lease: UUID | None = None
        """Lease on the turn that the request continues, in the store that servers share."""
        self.reservation: Reservation | None = None
        """Reservation of the caller's tokens, which is settled with the used tokens."""
        self.used_tokens = 0
        self.begun = begun
        """Time at which the request was admitted."""
        self.conversation_id = ""
        self.user: str | None = None
        """User that the request names."""
        self.erased = False
        """True after the user or conversation was erased, so that nothing of the request may be kept."""
        self._generating = set[asyncio.Task[Any]]()
        self._tasks, self._released = tasks, released
        self._open = 1  # the handler
        self._left = False

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a part of the request in a task, which is finished even if the client goes away."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        self._open += 1
        task.add_done_callback(self._ended)
        return task

    def generate(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Like `start`, for a part that generates, so that an erasure cancels it."""
        task = self.start(work)
        self._generating.add(task)
        if self.erased:
            asyncio.get_running_loop().call_soon(task.cancel)  # only after it has begun, so that it logs its end
        return task

    def erase(self) -> int:
        """Cancel the generation, because nothing of it may be kept. Returns the number of parts that were in progress.

        The log's watcher reports each erasure a second time. Parts may then be logging their end, so they are not
        cancelled again.
        """
        if self.erased:
            return 0
        self.erased = True
        running = [task for task in self._generating if not task.done()]
        for task in running:
            task.cancel()
        return len(running)

    def release(self) -> None:
        """Note that the handler has ended. Later calls do nothing."""
        if not self._left:
            self._left = True
            self._close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._generating.discard(task)  # a cancelled task keeps its frames alive, and so this request
        self._close()

    def _close(self) -> None:
        self._open -= 1
        if self._open:
            return
        self._released(self)
        if self.reservation is not None and not self.reservation.settled:
            settling = asyncio.create_task(self.settle())
            self._tasks.add(settling)
            settling.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Settle the caller's tokens, before the client receives the end of its answer, or after it went away."""
        if self.reservation is None:
            return
        try:
            await self.reservation.settle(self.used_tokens)
        except (GRPOError, APIError) as error:  # the turn is answered and in the log
            logger.error("tokens of a request were not refunded: %s", error)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the caller's limits after the last change of the reservation."""
        return {} if self.reservation is None else self.reservation.headers
