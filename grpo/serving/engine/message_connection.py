"""Messages over a socket between a server and its own processes: length, then pickle."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

_LENGTH = struct.Struct("!I")


def frame(message: object) -> bytes:
    """Bytes of a message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def read_frame(connection: socket.socket) -> Any:
    """Wait for one message. Raises `EOFError` if the other process has ended."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    return pickle.loads(_read(connection, length))  # noqa: S301 - from this server's own process


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        read = connection.recv(size - len(data))
        if not read:
            raise EOFError
        data += read
    return bytes(data)


class MessageConnection(asyncio.Protocol):
    """Messages on an event loop. Each is handled as soon as it arrives, instead of in a task that has to wait."""

    def __init__(self, receive: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._receive, self._lost = receive, lost
        self._read = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, message: object) -> None:
        """Send a message, without waiting until it is read. If the connection is lost, nothing is sent."""
        if self._transport is not None:
            self._transport.write(frame(message))

    def close(self) -> None:
        """Close the connection. `lost` is not called any more."""
        self._lost = lambda: None
        if self._transport is not None:
            self._transport.abort()  # drops unsent messages, because the other process ends anyway

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._read += data
        while len(self._read) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._read)[0]
            if len(self._read) < end:
                return
            message = pickle.loads(memoryview(self._read)[_LENGTH.size : end])  # noqa: S301 - as in `read_frame`
            del self._read[:end]
            self._receive(message)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        self._lost()
