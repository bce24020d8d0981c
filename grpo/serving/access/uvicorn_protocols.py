"""uvicorn's protocols for HTTP and WebSockets, counted in `Connections` and bounded in time and size.

They exist because uvicorn has no time limit for the head of a request, for a WebSocket's handshake or for a client that
does not read. It also parses all requests of one chunk before it answers the first one, reads the body of a request
with an unknown upgrade as the next request, and sends chunks to clients of HTTP/1.0. This module does not bound bodies,
because the guard does.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import uvloop
from httptools import HttpParserUpgrade, HttpRequestParser
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from grpo.config.serving import HEAD_S
from grpo.serving.access.connections import ADMIT, Connections, State
from grpo.serving.protocol.api_errors import error_response, invalid_request

HEAD_BYTES = 128 * 2**10
"""If an incomplete head has more bytes, its connection is closed, also if trailers or extensions of chunks have more.
The guard refuses a head of half as many with 431."""
PIPELINED = 16
"""Requests of one connection that may wait until the reply before them has been sent."""
FIRST_FRAME_BYTES = 64 * 2**10
"""Maximum bytes of a decompressed WebSocket message until `admit()` was called for the connection."""
_PARTS_OF_A_MESSAGE = 4096
"""Fragments of one WebSocket message, each of which costs the event loop about as much as a message."""
_CONTROL_FRAMES_PER_S = 50
_UNREADABLE = (
    b"the WebSocket's handshake cannot be read; it is a GET with at most 128 headers, none longer than 8192 bytes\n"
)


class _HeadTimer:
    """Closes a connection when its head is not complete in time."""

    def __init__(self, book: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._book, self._loop = book, loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport) -> None:
        """Start the timer, unless it runs already."""
        if self._timer is None and not transport.is_closing():
            self._timer = self._loop.call_later(self._book.head_s, self._end, transport)

    def stop(self) -> None:
        """Stop the timer, because the head is complete or the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, transport: asyncio.Transport) -> None:
        self._timer = None
        self._book.end(transport, "head")


class _Counted(asyncio.Protocol):
    """Part of both protocols: tells `Connections` that a connection has ended or that its client does not read."""

    book: Connections
    transport: asyncio.Transport
    _head_timer: _HeadTimer

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._head_timer.stop()
        self.book.close(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        self.book.set_paused(self.transport, paused=True)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        self.book.set_paused(self.transport, paused=False)


class _Parser(HttpRequestParser):
    """Parser that ignores an upgrade which the server does not offer, as RFC 9110 §7.8 asks for.

    httptools takes the body of any request with an upgrade for another protocol, and skips it. Therefore the head of
    such a request is parsed a second time, without its header `upgrade`, and the bytes after the head are its body.
    """

    def __init__(self, protocol: BoundedHttp) -> None:
        self._protocol = protocol
        self._restart()

    def _restart(self) -> None:
        """Forget what was parsed: after a head with `connection: close` the parser would skip all that follows."""
        super().__init__(self._protocol)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        """See `HttpRequestParser`. Raises `HttpParserUpgrade` only for a WebSocket."""
        while True:
            try:
                super().feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                if not self._protocol.ignored_upgrade:
                    raise
                self._restart()
                data = self._protocol.ignored_upgrade + data[upgrade.args[0] :]


class BoundedHttp(_Counted, HttpToolsProtocol):
    """uvicorn's HTTP protocol, with a time limit for heads, counted in `Connections`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.parser = _Parser(self)
        self.ignored_upgrade = b""
        """Head to parse instead of the last one, which has an upgrade that is ignored. Empty if it has none."""
        self._head_timer = _HeadTimer(self.book, self.loop)
        self._head_bytes = 0
        self._in_head = self._in_body = self._upgraded = self._admitted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.book.open(self.transport)
        self._head_timer.start(self.transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._in_head or self._in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._upgraded or self.transport.is_closing():
            return
        if self._head_bytes > HEAD_BYTES:
            self.book.end(self.transport, "head")
        elif self._answering():
            return
        elif self._in_head or self._in_body:  # of the next request, or of a request that was refused already
            self._head_timer.start(self.transport)
        elif self.timeout_keep_alive_task is None:  # uvicorn drops this timer at any byte
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        """See `HttpToolsProtocol`."""
        self._in_head, self._head_bytes, self.ignored_upgrade = True, 0, b""
        super().on_message_begin()
        self.scope["state"][ADMIT] = self._admit

    def on_header(self, name: bytes, value: bytes) -> None:
        """See `HttpToolsProtocol`.

        Trailers, the headers after a chunked body, are dropped, because uvicorn appends them to the headers of the
        head. Then a login or a length could come from a trailer, where a proxy does not look for it.
        """
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """See `HttpToolsProtocol`."""
        if self.parser.should_upgrade() and not self._should_upgrade():
            self.ignored_upgrade = self._head_without_upgrade()
            return
        self._in_head, self._in_body, self._head_bytes = False, True, 0
        self._head_timer.stop()
        super().on_headers_complete()
        self._note_state()
        if len(self.pipeline) > PIPELINED:
            self.book.end(self.transport, "pipelined")
            raise ValueError("too many requests wait")  # ends the parsing of the rest

    def on_body(self, body: bytes) -> None:
        """See `HttpToolsProtocol`."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See `HttpToolsProtocol`."""
        if self.ignored_upgrade:
            return
        self._in_body, self._head_bytes = False, 0
        if not self._answering():
            self._head_timer.stop()
        super().on_message_complete()
        self._note_state()

    def on_response_complete(self) -> None:
        """See `HttpToolsProtocol`."""
        self._admitted = False
        super().on_response_complete()
        self._note_state()
        if self._in_body and not self._answering():
            self._head_timer.start(self.transport)

    def handle_websocket_upgrade(self) -> None:
        """See `HttpToolsProtocol`."""
        self._head_timer.stop()
        if self._answering():  # otherwise the replies in progress would never learn that the client has gone
            self.book.end(self.transport, "pipelined")
            return
        self._upgraded = True
        self.book.set_state(self.transport, "unadmitted")
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """See `HttpToolsProtocol`. The body has the shape of the API's errors."""
        response = error_response(invalid_request("the request is not valid HTTP/1.1", code="invalid_http"))
        head = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
        self.transport.write(STATUS_LINE[400] + head + b"connection: close\r\n\r\n" + bytes(response.body))
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] != "1.1":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _should_upgrade(self) -> bool:
        return self.parser.get_http_version() == "1.1" and super()._should_upgrade()

    def _head_without_upgrade(self) -> bytes:
        """Bytes of the head that was read last. Raises `ValueError` for CONNECT, which has no meaning here."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise ValueError("this server is not a proxy")  # ends the parsing, and the answer is 400
        lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _admit(self) -> None:
        self._admitted = True
        self._note_state()

    def _note_state(self) -> None:
        """Tell the book what the connection does. A request was read in full if others wait behind it."""
        state: State = "busy" if self._admitted else "unadmitted"
        if not self._answering():
            state = "idle"
        elif self._in_body and not self.pipeline:
            state = "reading"
        self.book.set_state(self.transport, state)

    def _answering(self) -> bool:
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)


def _without_chunks(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """An app whose body, if it has no length, ends with its connection, because HTTP/1.0 has no chunks."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = False

        async def send_unframed(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                cycle.keep_alive = False
                if not has_length:
                    cycle.chunked_encoding = False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unframed)

    return answer


class BoundedSocket(_Counted, WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, counted in `Connections`, with bounds on fragments and control frames."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_timer = _HeadTimer(self.book, self.loop)
        self._control_frames = 0.0
        self._control_at = self.loop.time()
        self.conn.max_message_size = FIRST_FRAME_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`. The head that follows was read by the HTTP protocol before."""
        super().connection_made(transport)
        self._head_timer.start(self.transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():  # uvicorn ignores `conn.handshake_exc`
            head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[400] + head % len(_UNREADABLE) + _UNREADABLE)
            self.transport.close()

    def handle_connect(self, event: Any) -> None:
        """See `WebSocketsSansIOProtocol`."""
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["state"][ADMIT] = self._admit

    async def send(self, message: Any) -> None:
        """See `WebSocketsSansIOProtocol`."""
        await super().send(message)
        if self.handshake_complete or self.close_sent:
            self._head_timer.stop()

    def handle_cont(self, event: Any) -> None:
        """See `WebSocketsSansIOProtocol`."""
        super().handle_cont(event)
        if len(self.frames) > _PARTS_OF_A_MESSAGE:
            self._fail(1009, f"a message has more than {_PARTS_OF_A_MESSAGE} fragments")

    def handle_ping(self) -> None:
        """See `WebSocketsSansIOProtocol`."""
        super().handle_ping()
        now = self.loop.time()
        allowed = (now - self._control_at) * _CONTROL_FRAMES_PER_S
        self._control_frames, self._control_at = max(0.0, self._control_frames - allowed) + 1, now
        if self._control_frames > 2 * _CONTROL_FRAMES_PER_S:
            self._fail(1008, f"more than {_CONTROL_FRAMES_PER_S} pings a second")

    def _admit(self) -> None:
        self.book.set_state(self.transport, "busy")
        self.conn.max_message_size = self.config.ws_max_size

    def _fail(self, code: int, reason: str) -> None:
        if self.close_sent or self.transport.is_closing():
            return
        self.frames = []
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()


def bounded_protocols(book: Connections) -> tuple[type[BoundedHttp], type[BoundedSocket]]:
    """Protocol classes for HTTP and WebSockets that count connections in `book`. uvicorn makes their instances."""
    return (
        type("BoundedHttp", (BoundedHttp,), {"book": book}),
        type("BoundedSocket", (BoundedSocket,), {"book": book}),
    )


class HandshakeLoop(uvloop.Loop):
    """Event loop that gives a TLS handshake the time for a request's head, because uvicorn has no setting for it."""

    handshake_s = HEAD_S

    async def create_server(self, *arguments: Any, **named: Any) -> Any:
        """See `asyncio.AbstractEventLoop`."""
        if named.get("ssl") is not None:
            named.setdefault("ssl_handshake_timeout", self.handshake_s)
        return await super().create_server(*arguments, **named)
