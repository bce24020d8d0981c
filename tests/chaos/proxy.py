"""A TCP proxy on loopback that can refuse, delay, hang, cut and, for HTTP, answer 503; it also shows what passed.

A program that is to meet a fault of a server gets the address of a proxy instead of the server's. The fault is a mode
of the proxy, which may change at any time, also for open connections. Requests that came are kept, so that a fault can
begin at the very request of interest instead of some seconds after it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, Self

Mode = Literal["pass", "refuse", "slow", "hang", "cut", "unavailable"]
"""pass: forward. refuse: nothing listens, open connections are reset. slow: each chunk waits `delay_s`. hang:
connections are accepted and nothing is forwarded until the mode changes. cut: a reply is cut in the middle, and its
connection reset. unavailable: each request is answered with 503."""
_REQUEST = re.compile(rb"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) \S+(?= HTTP/1\.)")
_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_CHUNK = 64 * 1024
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that resets a connection when it is closed."""


class Proxy:
    """A proxy to a port of loopback, in a thread of its own: `with Proxy(port) as proxy: ... proxy.mode = "hang"`."""

    def __init__(self, target: int = 0, *, delay_s: float = 0.3) -> None:
        self.target = target
        """Port of the server; it may be set later, before the first connection."""
        self.requests: list[str] = []
        """Method and path of each HTTP request that came, also of one that was not forwarded."""
        self.port = 0
        self._delay_s = delay_s
        self._mode: Mode = "pass"
        self._changed = asyncio.Event()
        self._seen = threading.Condition()
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._do(self._enter(mode))

    def wait_for(self, pattern: str, *, after: int = 0, patience_s: float, alive: Callable[[], bool]) -> bool:
        """Wait for a request whose method and path match, from the request number `after` on; False if the time is over
        or `alive` is false before."""
        searched, deadline = after, time.monotonic() + patience_s
        while True:
            with self._seen:
                self._seen.wait(timeout=0.5)
                fresh = self.requests[searched:]
            if any(re.search(pattern, request) for request in fresh):
                return True
            searched += len(fresh)
            if time.monotonic() > deadline or not alive():
                return False

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in [*self._open]:
            _reset(writer)
        pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _enter(self, mode: Mode) -> None:
        if mode == "refuse":
            await self._close()
        elif self._server is None:
            await self._listen()
        self._mode = mode
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: both directions until either ends."""
        self._open.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            source, other = await asyncio.open_connection("127.0.0.1", self.target)
            self._open.add(other)
            ways = {
                asyncio.ensure_future(self._forward(reader, other, back=writer)),
                asyncio.ensure_future(self._forward(source, writer, back=None)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            _reset(writer)  # the server is not there: the client sees what it would see without the proxy
        finally:
            for end in (writer, other):
                if end is not None:
                    self._open.discard(end)
                    end.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: asyncio.StreamWriter | None
    ) -> None:
        """Forward one direction; `back` leads to the client if the direction is that of requests."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if back is not None:
                    self._record(data)
                while self._mode == "hang":
                    await self._changed.wait()
                if self._mode == "slow":
                    await asyncio.sleep(self._delay_s)
                if self._mode == "unavailable" and back is not None:
                    back.write(_UNAVAILABLE)
                    await back.drain()
                    return
                if self._mode == "cut" and back is None:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    _reset(writer)
                    return
                writer.write(data)
                await writer.drain()

    def _record(self, data: bytes) -> None:
        if (request := _REQUEST.match(data)) is not None:
            with self._seen:
                self.requests.append(request.group().decode(errors="replace"))
                self._seen.notify_all()


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None and not writer.is_closing():
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
