"""Connections of the server, with bounds in total and per address, and a time limit for the heads of requests.

    silent      open, and no head of a request is complete yet   closed 10 s after it began
    idle        between two requests                             closed 10 s after the next head began, or by keep-alive
    unadmitted  a request or a WebSocket without a key, or       closed by what answers it. A WebSocket is also closed
                its key was not checked yet                      after 10 s without an answer to its handshake
    reading     the head is complete, and the body is not        closed by the guard, which waits 60 s for a body
    busy        an admitted request or WebSocket in progress     closed by what answers it

If a bound is reached, a new connection is still accepted, and another one that is not busy is closed instead: the
oldest silent one, else the one that was idle longest, else the oldest unadmitted one, else the one that has been
reading longest. If the bound per address is reached, it is a connection of the same address, otherwise of the address
that has the most. So 2,000 silent sockets do not lock out any client, not even one behind the same proxy. If all others
are busy, the new connection is closed. A connection becomes busy only by `admit()`, which is called after a key was
checked. `X-Forwarded-For` is ignored, because clients can forge it.

If a client takes no byte of what is sent for 30 s, its connection is closed, in any state.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo.config.serving import HEAD_S

STALL_S = 30.0
"""A connection is closed if data waits for the client, and it took none of it for this time."""
ADMIT = "grpo.admit"
"""Key under which the state of an ASGI scope has a function, see `admit`."""
MOST_FILES = 65_536
_OWN_FILES = 256
"""Files that the server keeps for itself: log, databases, engines."""
_MOST_CONNECTIONS = 8192
_LOG_EVERY_S = 60.0
_LOOKS_PER_STALL = 3
_BYTES_ACKED = 120
"""Offset of the acknowledged bytes in Linux' `tcp_info`."""
State = Literal["silent", "idle", "unadmitted", "reading", "busy"]
logger = logging.getLogger(__name__)


def default_connections() -> int:
    """Raise the limit of open files as far as the system allows, and return the number of connections that fit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    files = MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return max(16, min(_MOST_CONNECTIONS, files - _OWN_FILES))


def admit(scope: MutableMapping[str, Any]) -> None:
    """Note that the key of a request or WebSocket was checked, so its connection is not closed to make room."""
    note = scope.get("state", {}).get(ADMIT)
    if note is not None:  # not from a server of this module, e.g. in memory
        note()


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection. A WebSocket keeps the entry of its handshake."""

    transport: asyncio.Transport
    address: str
    state: State = "silent"
    is_paused: bool = False
    """True if the send buffer of the transport is full."""
    delivered: _Delivered | None = None
    """Progress at the last check at which the client had taken something. None if nothing waits to be sent."""
    delivered_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Delivered:
    """Progress of the data that is sent to a client."""

    acknowledged: int
    """Bytes that the client's system has confirmed, or 0 if this system does not report them."""
    waiting: int
    """Bytes in this process's send buffer, which the system has not taken yet."""

    def is_more_than(self, before: _Delivered) -> bool:
        """True if the client took something since `before`."""
        return self.acknowledged > before.acknowledged or self.waiting < before.waiting


@dataclass(slots=True)
class _Address:
    """Connections of one address that may be closed, oldest first, and the number of all its connections."""

    silent: OrderedDict[_Connection, None] = field(default_factory=OrderedDict)
    idle: OrderedDict[_Connection, None] = field(default_factory=OrderedDict)
    unadmitted: OrderedDict[_Connection, None] = field(default_factory=OrderedDict)
    reading: OrderedDict[_Connection, None] = field(default_factory=OrderedDict)
    total: int = 0

    def remove(self, connection: _Connection) -> None:
        """Remove a connection from the connections that may be closed."""
        for connections in (self.silent, self.idle, self.unadmitted, self.reading):
            connections.pop(connection, None)

    def oldest(self) -> _Connection | None:
        """Connection to close first, or None if all are busy."""
        return next(iter(self.silent or self.idle or self.unadmitted or self.reading), None)


class Connections:
    """Open connections of a server: up to `most` in total, and up to `per_address` of one address."""

    def __init__(self, *, most: int, per_address: int, head_s: float = HEAD_S, stall_s: float = STALL_S) -> None:
        self.most, self.per_address, self.head_s, self.stall_s = most, per_address, head_s, stall_s
        self.closed: Counter[str] = Counter({"head": 0, "room": 0, "refused": 0, "unread": 0, "pipelined": 0})
        """Number of closed connections per reason: the head was not complete in time (`head`), a new connection needed
        the room (`room`), all others were busy (`refused`), the client did not read (`unread`), or it sent too many
        requests at once (`pipelined`)."""
        self._addresses: dict[str, _Address] = {}
        self._by_transport: dict[asyncio.Transport, _Connection] = {}
        self._logged, self._logged_at = Counter[str](), float("-inf")
        self._look: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._by_transport)

    def states(self) -> Counter[State]:
        """Number of connections in each state."""
        count: Counter[State] = Counter({"silent": 0, "idle": 0, "unadmitted": 0, "reading": 0, "busy": 0})
        count.update(connection.state for connection in self._by_transport.values())
        return count

    def open(self, transport: asyncio.Transport) -> None:
        """Count a new connection. If there are too many, close another one, or the new one if all others are busy."""
        connection = _Connection(transport, _address(transport))
        own = self._addresses.setdefault(connection.address, _Address())
        if own.total >= self.per_address:
            self._make_room(own.oldest(), connection)
        elif len(self._by_transport) >= self.most:
            fullest = sorted(self._addresses.values(), key=lambda address: address.total, reverse=True)
            self._make_room(next(filter(None, (address.oldest() for address in fullest)), None), connection)
        if transport.is_closing():
            if not own.total:
                self._addresses.pop(connection.address, None)
            return
        self._addresses[connection.address] = own  # the last connection of the address may have been the closed one
        self._by_transport[transport] = connection
        own.total += 1
        own.silent[connection] = None
        self._look_later()

    def close(self, transport: asyncio.Transport) -> None:
        """Forget a connection that has ended."""
        connection = self._by_transport.pop(transport, None)
        if connection is None:
            return
        own = self._addresses[connection.address]
        own.remove(connection)
        own.total -= 1
        if not own.total:
            del self._addresses[connection.address]

    def set_state(self, transport: asyncio.Transport, state: State) -> None:
        """Note that a request begins, is complete, or has ended."""
        connection = self._by_transport.get(transport)
        if connection is None or connection.state == state:
            return
        own = self._addresses[connection.address]
        own.remove(connection)
        connection.state = state
        if state == "idle":
            own.idle[connection] = None
        elif state == "unadmitted":
            own.unadmitted[connection] = None
        elif state == "reading":
            own.reading[connection] = None

    def set_paused(self, transport: asyncio.Transport, *, paused: bool) -> None:
        """Note that the send buffer of a connection is full, or has room again."""
        if (connection := self._by_transport.get(transport)) is not None:
            connection.is_paused, connection.delivered = paused, None

    def end(self, transport: asyncio.Transport, reason: str) -> None:
        """Close a connection at once, even if the client has not read its replies. Logs a summary once per minute."""
        if transport.is_closing() and transport not in self._by_transport:
            return
        self.closed[reason] += 1
        self.close(transport)
        transport.abort()  # close() would wait for the client's end of TLS
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            since = self.closed - self._logged
            self._logged, self._logged_at = self.closed.copy(), now
            logger.warning(
                "connections were closed: %d because their head was not complete within %g s, %d in favour of new "
                "ones, %d new ones without room, %d that did not read for %g s, %d with too many requests at once. %d "
                "are open",
                since["head"], self.head_s, since["room"], since["refused"],
                since["unread"], self.stall_s, since["pipelined"], len(self),
            )  # fmt: skip

    def _look_later(self) -> None:
        if self._look is None and self._by_transport:
            self._look = asyncio.get_running_loop().call_later(self.stall_s / _LOOKS_PER_STALL, self._end_unread)

    def _end_unread(self) -> None:
        """Close connections on which data waits, but the client took nothing for `stall_s`."""
        self._look = None
        now = time.monotonic()
        for transport, connection in list(self._by_transport.items()):
            if not connection.is_paused and not transport.is_closing():
                connection.delivered = None
                continue
            delivered = _delivered(transport)
            if connection.delivered is None or delivered.is_more_than(connection.delivered):
                connection.delivered, connection.delivered_at = delivered, now
            elif now - connection.delivered_at >= self.stall_s:
                self.end(transport, "unread")
        self._look_later()

    def _make_room(self, oldest: _Connection | None, new: _Connection) -> None:
        if oldest is None:
            self.end(new.transport, "refused")
        else:
            self.end(oldest.transport, "room")


def _delivered(transport: asyncio.Transport) -> _Delivered:
    """Bytes that the client has acknowledged, which only Linux reports, and bytes that wait in this process."""
    acknowledged = 0
    with contextlib.suppress(AttributeError, OSError, struct.error):  # macOS, sockets of Unix, a closed one
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        (acknowledged,) = struct.unpack_from("Q", info, _BYTES_ACKED)
    return _Delivered(acknowledged=acknowledged, waiting=transport.get_write_buffer_size())


def _address(transport: asyncio.Transport) -> str:
    """Address of the client. For IPv6 it is the /64 network, because one client usually has all of it."""
    peer = transport.get_extra_info("peername")
    host = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((int(address), 64), strict=False))
