"""Prefect's locks, on files that the kernel frees when their holder dies.

Prefect's own file locks outlive a killed process and block the next run for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from grpo.locks import file_lock


class FlockLockManager:
    """A Prefect lock manager: one file a key, under the folder that `folder` returns."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._held: dict[str, tuple[str, FileLock]] = {}
        self._guard = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> FlockLockManager:
        """Copies of a policy share its locks."""
        return self

    def __reduce__(self) -> tuple[type[FlockLockManager], tuple[Callable[[], Path]]]:
        """A stage that goes to another process leaves what is held here behind; the files are the same."""
        return type(self), (self._folder,)

    def acquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """Wait for the lock, at most `acquire_timeout` seconds."""
        if self.is_lock_holder(key, holder):
            return True
        lock = self._file(key)
        try:
            lock.acquire(timeout=_seconds(acquire_timeout))
        except Timeout:
            return False
        with self._guard:
            self._held[key] = (holder, lock)
        return True

    async def aacquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """See `acquire_lock`."""
        return await asyncio.to_thread(self.acquire_lock, key, holder, acquire_timeout, hold_timeout)

    def release_lock(self, key: str, holder: str) -> None:
        """Give the lock back; only its holder may."""
        with self._guard:
            if key not in self._held or self._held[key][0] != holder:
                raise ValueError(f"no lock held by {holder} for {key}")
            self._held.pop(key)[1].release()

    def is_locked(self, key: str) -> bool:
        """Whether any process holds the lock."""
        return not self.wait_for_lock(key, timeout=0)

    def is_lock_holder(self, key: str, holder: str) -> bool:
        """Whether `holder` holds the lock, in this process."""
        with self._guard:
            return key in self._held and self._held[key][0] == holder

    def wait_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """Wait until nobody holds the lock."""
        try:
            with self._file(key).acquire(timeout=_seconds(timeout)):
                return True
        except Timeout:
            return False

    async def await_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """See `wait_for_lock`."""
        return await asyncio.to_thread(self.wait_for_lock, key, timeout)

    def _file(self, key: str) -> FileLock:
        """A lock object of its own for each use: threads exclude each other like processes."""
        return file_lock(self._folder() / hashlib.sha256(key.encode()).hexdigest()[:32])


def _seconds(timeout: float | None) -> float:
    return -1 if timeout is None else timeout
