"""Locks that the kernel frees when their holder dies.

Prefect's own file locks outlive a killed process and block the next run for ever; `flock` does not.
Locks hold on one machine and a local disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_POLL_S = 0.05


class FlockLockManager:
    """A Prefect lock manager: one file a key, under the folder that `folder` returns."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._held: dict[str, tuple[str, int]] = {}
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
        deadline = None if acquire_timeout is None else time.monotonic() + acquire_timeout
        while True:
            if self._try(key, holder):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)

    async def aacquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        """See `acquire_lock`."""
        return await asyncio.to_thread(self.acquire_lock, key, holder, acquire_timeout, hold_timeout)

    def release_lock(self, key: str, holder: str) -> None:
        """Give the lock back; only its holder may."""
        with self._guard:
            if not self.is_lock_holder(key, holder):
                raise ValueError(f"no lock held by {holder} for {key}")
            os.close(self._held.pop(key)[1])

    def is_locked(self, key: str) -> bool:
        """Whether any process holds the lock."""
        with self._guard:
            if key in self._held:
                return True
            descriptor = self._open(key)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                return True
            finally:
                os.close(descriptor)

    def is_lock_holder(self, key: str, holder: str) -> bool:
        """Whether `holder` holds the lock, in this process."""
        return key in self._held and self._held[key][0] == holder

    def wait_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """Wait until nobody holds the lock."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_locked(key):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    async def await_for_lock(self, key: str, timeout: float | None = None) -> bool:
        """See `wait_for_lock`."""
        return await asyncio.to_thread(self.wait_for_lock, key, timeout)

    def _try(self, key: str, holder: str) -> bool:
        with self._guard:
            if key in self._held:
                return self._held[key][0] == holder
            descriptor = self._open(key)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._held[key] = (holder, descriptor)
            return True

    def _open(self, key: str) -> int:
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
