"""Heartbeat of an engine process: a byte each second, from a thread of its own, over a socket of its own.

A forward pass may take minutes, and its process answers nothing meanwhile. The thread beats on through it, so that
silence means that the process is stopped, or that the machine has no time for it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time

INTERVAL_S = 1.0
_READ = 4096


def start_beating(pulse: socket.socket) -> None:
    """Send heartbeats from now on, until the other end is closed. What it does not read is left out."""
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
    """The end of the server."""

    def __init__(self, pulse: socket.socket) -> None:
        pulse.setblocking(False)
        self._pulse = pulse
        self._beat = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self) -> None:
        """Read heartbeats on this event loop as they come, from now on."""
        self._beat, self._loop = time.monotonic(), asyncio.get_running_loop()
        self._loop.add_reader(self._pulse, self._read)

    @property
    def silent_s(self) -> float:
        """Seconds since the last one."""
        self._read()  # the event loop may have been held up itself
        return time.monotonic() - self._beat

    def close(self) -> None:
        """Stop, on the event loop that watches; later calls do nothing."""
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
        elif self._loop is not None:  # the process has ended, which its other connection says
            self._loop.call_soon_threadsafe(self.close)
