"""Restarts of services that have died."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from grpo.storage.error_lines import one_line
from grpo_local.managed_process import ManagedProcess

logger = logging.getLogger(__name__)
FIRST_PAUSE_S = 1.0
MOST_DEATHS = 5
STEADY_S = 600.0
"""Time after which a restarted service counts as healthy again."""


def supervise_once(checks: Mapping[str, Callable[[], None]]) -> None:
    """Run every check once. If one raises, the error is logged and the other checks still run."""
    for name, check in checks.items():
        try:
            check()
        except Exception as error:
            logger.error("%s: %s", name, one_line(error))


def restart_if_dead(server: ManagedProcess, *, wait: bool = False) -> None:
    """Restart a dead server, and with `wait` wait until it answers."""
    if server.process() is None:
        logger.warning("%s has ended and is started again. Its log is %s", server.name, server.log)
        server.start()
        if wait:
            server.wait()


class Restarts:
    """Restarts of one service, after a pause that doubles with each death, and at most `MOST_DEATHS` in a row.

    A service that has lived for `STEADY_S` begins to count again. A service that dies once more is given up, because
    it would die again, and others can do its work.
    """

    def __init__(self, service: ManagedProcess, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns the time in seconds."""
        self.deaths = 0
        """Deaths in a row."""
        self._service, self._clock = service, clock
        self._again_at: float | None = None
        """Time of the next start. None while it lives."""
        self._started_at = 0.0

    @property
    def is_given_up(self) -> bool:
        """True if it is not started any more."""
        return self.deaths > MOST_DEATHS

    def check(self) -> None:
        """Notice a death, or start the service again if its pause is over."""
        now = self._clock()
        if self.is_given_up:
            return
        if self._again_at is not None:
            if now >= self._again_at:
                self._again_at, self._started_at = None, now
                self._service.start()
        elif self._service.process() is None:
            self.deaths = 1 if now - self._started_at > STEADY_S else self.deaths + 1
            service, reason = self._service, self._service.describe_end()
            if self.is_given_up:
                logger.error(
                    "%s has ended %d times in a row and is not started again: %s. See %s",
                    *(service.name, self.deaths, reason, service.log),
                )
                return
            pause_s = FIRST_PAUSE_S * 2 ** (self.deaths - 1)
            logger.warning("%s has ended: %s. It is started again in %g s", service.name, reason, pause_s)
            self._again_at = now + pause_s
