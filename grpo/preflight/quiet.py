"""Silence of this project's loggers while a check plays episodes.

What a run reports about its episodes is not about the episodes of a check. Two checks may overlap in one process, for
example of two flow runs, so that the level is restored when the last of them ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("grpo")
_guard = threading.Lock()
_levels: list[int] = []
"""Level before the first of the blocks that run now, once per block."""


@contextmanager
def errors_only() -> Iterator[None]:
    """Log errors only while the block runs; the level is process-wide, also for what runs at the same time."""
    with _guard:
        _levels.append(_levels[0] if _levels else LOGGER.level)
        LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        with _guard:
            level = _levels.pop()
            if not _levels:
                LOGGER.setLevel(level)
