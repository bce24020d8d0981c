"""Heartbeat of an engine process: a separate thread sends one byte per second over a separate socket.

A forward pass may take minutes, in which its process does not answer. The thread goes on to send, so that silence means
that the process is stopped, or that the machine gives it no CPU time.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time

INTERVAL_S = 1.0
_READ = 4096


def start_beating(pulse: socket.socket) -> None:
    """Send heartbeats until the other end is closed. If its buffer is full, beats are left out."""
    pulse.setblocking(False)
    threading.Thread(target=_beat, args=(pulse,), daemon=True, name="heartbeat").start()


def _beat(pulse: socket.socket) -> None:
    while True:
        try:
            pulse.send(b".")
        except BlockingIOError:
            pass
        except OSError:
            return
        time.sleep(INTERVAL_S)


class Heartbeat:
    """Server's end of the heartbeat."""

    def __init__(self, pulse: socket.socket) -> None:
        pulse.setblocking(False)
        self._pulse = pulse
        self._beat = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self) -> None:
        """Read heartbeats on this event loop from now on, as they arrive."""
        self._beat, self._loop = time.monotonic(), asyncio.get_running_loop()
        self._loop.add_reader(self._pulse, self._read)

    @property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat."""
        self._read()  # in case the event loop itself was held up and has not read yet
        return time.monotonic() - self._beat

    def close(self) -> None:
        """Stop. Call this on the event loop that watches. Later calls do nothing."""
        if self._pulse.fileno() >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._pulse)
            self._pulse.close()

    def _read(self) -> None:
        try:
            beats = self._pulse.recv(_READ)
        except OSError:  # none came, or it is closed
            return
        if beats:
            self._beat = time.monotonic()
        elif self._loop is not None:  # the process has ended, which its other connection reports
            self._loop.call_soon_threadsafe(self.close)
