"""Bounds on connections and on heads of requests, on a real server with small bounds."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from grpo.config.serving import ServerSettings
from grpo.serving.access.connections import Connections, _address, _Delivered, _delivered, admit, default_connections
from grpo.serving.access.uvicorn_protocols import FIRST_FRAME_BYTES, HEAD_BYTES, PIPELINED, HandshakeLoop
from grpo.serving.server import uvicorn_config
from tests import waiting

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
UPGRADE = (
    b"connection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
HANDSHAKE = b"GET %s HTTP/1.1\r\nhost: x\r\n" + UPGRADE
UNREADABLE = {
    "line": b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 9000 + b"\r\n" + UPGRADE,
    "headers": b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: a\r\n" * 200 + UPGRADE,
    "method": b"POST / HTTP/1.1\r\nhost: x\r\n" + UPGRADE,
    "path": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: x\r\n" + UPGRADE,
    "body": b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n" + UPGRADE,
}
"""Handshakes of WebSockets that HTTP allows and `websockets` cannot read."""


@dataclass(slots=True)
class Edge:
    """A running server of a tiny application without keys.

    A request with a login is refused. `/wait`, `/stream` and `/socket` are admitted as if they had one. `/wait` and
    `/public-wait` answer when the gate is open, `/stream` sends without an end, `/large` sends more than the buffers of
    the system take, and a WebSocket of `/silent` gets no answer to its handshake.
    """

    port: int
    book: Connections
    gate: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    """Set when the application has learnt that the client of a stream is gone."""

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=240, source_address=(source, 0))

    def until(self, state: str, number: int) -> None:
        waiting.until(f"{number} {state}", lambda: self.book.states()[state] == number, patience_s=240)  # type: ignore[index]


@contextmanager
def edge(folder: Path, **bounds: Any) -> Iterator[Edge]:
    """Serve until the block ends."""
    settings = ServerSettings(drain_s=5)
    given: dict[str, Any] = {"most": 100, "per_address": 100, "head_s": 60.0, **bounds}
    book = Connections(**given)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        running = Edge(listener.getsockname()[1], book)

        async def app(connection: Scope, receive: Receive, send: Send) -> None:
            if connection["type"] == "lifespan":
                while (message := await receive())["type"] != "lifespan.shutdown":
                    await send({"type": f"{message['type']}.complete"})
                await send({"type": "lifespan.shutdown.complete"})
                return
            if connection["path"] in ("/wait", "/stream", "/socket"):
                admit(connection)
            if connection["type"] == "websocket":
                if connection["path"] == "/silent":
                    await asyncio.to_thread(running.gate.wait, 240)
                    return
                await send({"type": "websocket.accept"})
                while (await receive())["type"] != "websocket.disconnect":
                    pass
            elif connection["path"] == "/stream":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await receive()
                leaving = asyncio.ensure_future(receive())
                while not leaving.done():
                    await send({"type": "http.response.body", "body": bytes(2**16), "more_body": True})
                    await asyncio.sleep(0)  # after the end of its connection, `send` returns at once
                running.gone.set()
            elif connection["path"] == "/large":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": bytes(2**25)})
            else:
                if connection["path"] == "/read":
                    while (await receive()).get("more_body", False):
                        pass
                if connection["path"] in ("/wait", "/public-wait"):
                    await asyncio.to_thread(running.gate.wait, 240)
                names = [name for name, _ in connection["headers"]]
                status = 413 if connection["path"] == "/refuse" or b"authorization" in names else 200
                await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
                await send({"type": "http.response.body", "body": b"ok"})

        server = uvicorn.Server(uvicorn_config(app, settings, book))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        try:
            yield running
        finally:
            running.gate.set()
            server.should_exit = True
            thread.join()


def ended(connection: socket.socket) -> bool:
    """True when the server has closed the connection; waits for it."""
    with suppress(ConnectionError):
        return connection.recv(1000) == b""
    return True


def answer(connection: socket.socket, request: bytes = REQUEST) -> bytes:
    """Send a request and read its whole answer, whose parts may arrive one by one. Empty if the connection ends."""
    connection.sendall(request)
    received = b""
    while b"\r\n\r\nok" not in received:
        if not (chunk := connection.recv(1000)):
            return b""
        received += chunk
    return received


def answered(connection: socket.socket, request: bytes = REQUEST) -> bool:
    """Send a request; True if it is answered."""
    return bool(answer(connection, request))


@pytest.mark.parametrize("content", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n", b"\r\n"])
def test_a_connection_without_a_whole_head_is_closed(tmp_path: Path, content: bytes):
    """Silent, with half a head, or with an empty line."""
    with edge(tmp_path, head_s=0.3) as server, server.connect() as connection:
        connection.sendall(content)
        assert ended(connection)
        assert server.book.closed["head"] == 1


def test_a_head_that_drips_is_closed_in_the_same_time(tmp_path: Path):
    """A header each 20 ms does not begin the time again."""
    with edge(tmp_path, head_s=0.5) as server, server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.02)
        closed = False
        while not closed:
            try:
                closed = ended(connection)
            except TimeoutError:
                with suppress(ConnectionError):
                    connection.sendall(b"x-a: b\r\n")
        assert server.book.closed["head"] == 1


def test_the_second_head_has_a_time_limit_and_an_idle_connection_has_not(tmp_path: Path):
    """One is idle from before a silent one is opened until after that is closed, and still answers."""
    with edge(tmp_path, head_s=2) as server, server.connect() as idle, server.connect() as half:
        assert answered(idle)
        assert answered(half)
        half.sendall(REQUEST[:-2])
        assert ended(half)
        assert answered(idle)


def test_the_rest_of_a_refused_body_is_not_waited_for(tmp_path: Path):
    """413 after the head; its body does not come, and an answer to a whole body keeps the connection."""
    head = b"POST /refuse HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
    with edge(tmp_path, head_s=2) as server, server.connect() as whole, server.connect() as part:
        assert answered(whole, head + b"body")
        assert answered(part, head + b"bo")
        assert ended(part)
        assert answered(whole)


def test_a_head_without_an_end_is_closed_by_its_size(tmp_path: Path):
    with edge(tmp_path) as server, server.connect() as connection:
        with suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nx: " + b"x" * (4 * HEAD_BYTES))
        assert ended(connection)
        assert server.book.closed["head"] == 1


CHUNKED = b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"


def test_a_header_behind_the_body_is_not_a_header_of_the_request(tmp_path: Path):
    """Head, chunks and trailer arrive at once, so that the application begins after the trailer was read. In the head
    the same header is seen."""
    login = b"authorization: Basic YTpi\r\n"
    with edge(tmp_path) as server, server.connect() as connection:
        assert answer(connection, CHUNKED + b"0\r\n" + login + b"\r\n").startswith(b"HTTP/1.1 200 ")
        in_the_head = CHUNKED.replace(b"host", login + b"host") + b"0\r\n\r\n"
        assert answer(connection, in_the_head).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("endless", [b"0\r\nx: ", b"1;x="])
def test_trailers_and_extensions_without_an_end_are_closed_by_their_size(tmp_path: Path, endless: bytes):
    """Many small chunks, with more framing than that in all, are read."""
    with edge(tmp_path) as server, server.connect() as connection, server.connect() as small:
        with suppress(ConnectionError):
            connection.sendall(CHUNKED + endless + b"x" * (4 * HEAD_BYTES))
        assert ended(connection)
        assert server.book.closed["head"] == 1
        assert answered(small, CHUNKED + b"1\r\na\r\n" * (HEAD_BYTES // 4) + b"0\r\n\r\n")


def test_the_oldest_silent_connection_makes_room(tmp_path: Path):
    """Three of one address: the fourth is answered, the first is closed, the second is not."""
    with edge(tmp_path, per_address=3) as server, ExitStack() as stack:
        silent = []
        for number in range(1, 4):
            silent.append(stack.enter_context(server.connect()))
            server.until("silent", number)
        assert answered(stack.enter_context(server.connect()))
        assert ended(silent[0])
        assert answered(silent[1])
        assert server.book.closed["room"] == 1


def test_silent_connections_are_closed_before_idle_ones_and_busy_ones_never(tmp_path: Path):
    """An idle one, a busy one, a silent one: the silent one makes room, then the idle one, then there is none."""
    with edge(tmp_path, per_address=3) as server, ExitStack() as stack:
        idle, busy, silent = (stack.enter_context(server.connect()) for _ in range(3))
        assert answered(idle)
        busy.sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        server.until("busy", 1)
        more = []
        for number, closed in ((2, silent), (3, idle)):
            more.append(stack.enter_context(server.connect()))
            more[-1].sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
            assert ended(closed)
            server.until("busy", number)
        assert ended(stack.enter_context(server.connect()))
        assert server.book.closed == Counter(room=2, refused=1)
        server.gate.set()
        for connection in (busy, *more):
            assert b"200 OK" in connection.recv(1000)


@pytest.mark.parametrize("before", [b"", b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_requests_whose_bodies_do_not_arrive_lock_nobody_out(tmp_path: Path, before: bytes):
    """Three of three connections read a body, also after a request that was sent before; the oldest makes room."""
    head = b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
    with edge(tmp_path, per_address=3) as server, ExitStack() as stack:
        server.gate.set()
        reading = []
        for number in range(1, 4):
            reading.append(stack.enter_context(server.connect()))
            reading[-1].sendall(before + head)
            server.until("reading", number)
        assert answered(stack.enter_context(server.connect()))
        assert server.book.closed == Counter(room=1)
        assert answered(reading[1], b"12345")


def test_the_address_with_the_most_makes_room_for_others(tmp_path: Path):
    """Four in all: the older of two addresses has one, the other three, of which the oldest is closed."""
    with edge(tmp_path, most=4) as server, ExitStack() as stack:
        first = stack.enter_context(server.connect("127.0.0.2"))
        server.until("silent", 1)
        many = []
        for number in range(2, 5):
            many.append(stack.enter_context(server.connect("127.0.0.3")))
            server.until("silent", number)
        assert answered(stack.enter_context(server.connect("127.0.0.4")))
        assert ended(many[0])
        assert answered(first)


def test_a_hundred_silent_sockets_lock_nobody_out(tmp_path: Path):
    """At a bound of 20, clients of the same address are answered all the while."""
    with edge(tmp_path, most=20) as server, ExitStack() as stack:
        for _ in range(10):
            for _ in range(10):
                stack.enter_context(server.connect())
            with server.connect() as honest:
                assert answered(honest)
        assert len(server.book) <= 20


def test_a_websocket_counts_until_it_ends(tmp_path: Path):
    with edge(tmp_path, per_address=1) as server:
        with connect(f"ws://127.0.0.1:{server.port}/socket"):
            server.until("busy", 1)
            with server.connect() as refused:
                assert ended(refused)
        server.until("busy", 0)
        with server.connect() as connection:
            assert answered(connection)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_handshake_that_cannot_be_read_is_refused_and_closed(tmp_path: Path, kind: str):
    """Status 400, or 4xx of `websockets`' own; the connection does not stay open for longer."""
    with edge(tmp_path) as server, server.connect() as connection:
        connection.sendall(UNREADABLE[kind])
        assert connection.recv(1000).startswith(b"HTTP/1.1 4")
        assert ended(connection)
        server.until("busy", 0)
        assert not len(server.book)


def test_a_handshake_without_an_answer_has_the_time_of_a_head(tmp_path: Path):
    with edge(tmp_path, head_s=0.3) as server, server.connect() as connection:
        connection.sendall(HANDSHAKE % b"/silent")
        assert ended(connection)
        assert server.book.closed == Counter(head=1)


def test_an_open_websocket_has_no_time_limit(tmp_path: Path):
    """One is open from before a silent connection is opened until after that is closed, and still answers."""
    with edge(tmp_path, head_s=2) as server, connect(f"ws://127.0.0.1:{server.port}/socket") as socket_:
        with server.connect() as silent:
            assert ended(silent)
        assert socket_.ping().wait(240)


@pytest.mark.parametrize("request_", [HANDSHAKE % b"/", b"GET /public-wait HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_what_nobody_has_admitted_locks_nobody_out(tmp_path: Path, request_: bytes):
    """Three of three connections are WebSockets or requests without a key, in progress; the oldest makes room."""
    with edge(tmp_path, per_address=3) as server, ExitStack() as stack:
        waiting_ = []
        for number in range(1, 4):
            waiting_.append(stack.enter_context(server.connect()))
            waiting_[-1].sendall(request_)
            server.until("unadmitted", number)
        assert answered(stack.enter_context(server.connect()))
        while waiting_[0].recv(1000):  # of the handshake's answer
            pass
        assert server.book.closed == Counter(room=1)


def test_a_long_message_before_admission_closes_a_websocket(tmp_path: Path):
    """Code 1009 for a byte too many; an admitted one may send it."""
    text = "a" * (FIRST_FRAME_BYTES + 1)
    with edge(tmp_path) as server:
        with connect(f"ws://127.0.0.1:{server.port}/socket") as admitted:
            admitted.send(text)
            assert admitted.ping().wait(240)
        with connect(f"ws://127.0.0.1:{server.port}/") as unadmitted:
            unadmitted.send(text)
            with pytest.raises(ConnectionClosed) as caught:
                unadmitted.recv(240)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


def test_a_websocket_behind_a_reply_that_is_not_sent_is_refused(tmp_path: Path):
    """Else the reply would wait for a client whose end it never learns of."""
    with edge(tmp_path) as server, server.connect() as connection:
        connection.sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n" + HANDSHAKE % b"/")
        assert ended(connection)
        assert server.book.closed == Counter(pipelined=1)


def test_pipelined_requests_are_bounded(tmp_path: Path):
    """One that is answered and 16 behind it are answered in their order; with 17 behind it the connection is closed."""
    with edge(tmp_path) as server, server.connect() as fits, server.connect() as too_many:
        too_many.sendall(REQUEST * (PIPELINED + 2))
        assert ended(too_many)
        assert server.book.closed == Counter(pipelined=1)
        fits.sendall(REQUEST * (PIPELINED + 1))
        answer = b""
        while answer.count(b"\r\n\r\nok") < PIPELINED + 1:
            answer += fits.recv(1000)


def test_a_stream_that_is_not_read_is_cancelled(tmp_path: Path):
    """Its application learns that the client is gone, though the connection was admitted and is open on its side."""
    with edge(tmp_path, stall_s=0.3) as server, server.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        assert server.gone.wait(240)
        assert server.book.closed == Counter(unread=1)


def test_a_stream_that_is_read_slowly_goes_on(tmp_path: Path):
    """4 KiB a time with a small buffer, until another one that is not read is closed, and after it."""
    with edge(tmp_path, stall_s=6) as server, server.connect() as unread, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)
        slow.connect(("127.0.0.1", server.port))
        for connection in (slow, unread):
            connection.sendall(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        while not server.gone.wait(0.001):
            assert slow.recv(4096)
        for _ in range(100):
            assert slow.recv(4096)
        assert server.book.closed == Counter(unread=1)


def test_replies_that_nobody_reads_do_not_keep_a_closed_connection(tmp_path: Path):
    """The server has closed it after its replies, as they are larger than the buffers of the system."""
    request = b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with edge(tmp_path, stall_s=0.3) as server, server.connect() as connection:
        connection.sendall(request)
        waiting.until("closed", lambda: server.book.closed["unread"] == 1, patience_s=240)
        assert not len(server.book)


@pytest.mark.parametrize("kind", ["fragments", "pings"])
def test_a_flood_of_small_frames_closes_a_websocket(tmp_path: Path, kind: str):
    """Of a message in 5,000 fragments, or of pings without a pause: code 1009 or 1008 after the handshake."""
    frames = {
        "fragments": b"\x01\x81\0\0\0\0x" + b"\x00\x81\0\0\0\0x" * 5000,
        "pings": b"\x89\x80\0\0\0\0" * 5000,
    }
    with edge(tmp_path) as server, server.connect() as connection:
        connection.sendall(HANDSHAKE % b"/")
        assert b"101" in connection.recv(1000)
        answer = b""
        with suppress(ConnectionError):
            connection.sendall(frames[kind])
            while chunk := connection.recv(65536):
                answer += chunk
        code = {"fragments": 1009, "pings": 1008}[kind]
        assert code.to_bytes(2, "big") in answer


def test_a_tls_handshake_has_a_time_limit(tmp_path: Path):
    """A client that says nothing is closed by the loop, before there is a protocol that could."""

    class Quick(HandshakeLoop):
        handshake_s = 0.3

    async def serve() -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(240):
            answer = await reader.read()
        writer.close()
        server.close()
        return answer

    with closing(Quick()) as loop:
        assert loop.run_until_complete(serve()) == b""


def test_the_default_leaves_files_to_the_server():
    """At least 16 connections, and fewer than the files that may be open."""
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = default_connections()
    assert 16 <= most <= 8192
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(soft, most)


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        (("2001:db8::1", "2001:db8::2", "2001:db8::3%eth0"), "2001:db8::/64"),
        (("192.0.2.1", "::ffff:192.0.2.1"), "192.0.2.1"),
        (("a socket",), "a socket"),
    ],
)
def test_the_address_of_a_client_is_a_network_of_ipv6(hosts: tuple[str, ...], address: str):
    """Because one client has all of it. An IPv4 address is one client, also if it is written as IPv6."""
    assert {_address(asyncio.Transport({"peername": (host, 1)})) for host in hosts} == {address}


def test_connections_are_looked_at_several_times_before_one_counts_as_unread():
    """Otherwise a client that stops to read would keep its connection for much longer than `stall_s`."""

    class Open(asyncio.Transport):
        def is_closing(self) -> bool:
            return False

    async def opened() -> float:
        book = Connections(most=16, per_address=8, stall_s=1000.0)
        book.open(Open({"peername": ("192.0.2.1", 1)}))
        assert book._look is not None
        return book._look.when() - asyncio.get_running_loop().time()

    assert asyncio.run(opened()) < 500


def test_what_a_closed_connection_still_reports_is_not_counted():
    """Its protocol may parse a request that has arrived just before."""
    book = Connections(most=16, per_address=8)
    book.set_state(asyncio.Transport(), "busy")
    assert not any(book.states().values())


def test_every_reason_to_close_a_connection_is_counted_from_the_start():
    """So that a metric of a reason that has not occurred is 0 instead of missing."""
    assert Connections(most=16, per_address=8).closed == {
        "head": 0,
        "room": 0,
        "refused": 0,
        "unread": 0,
        "pipelined": 0,
    }


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the bytes that a client has acknowledged")
def test_bytes_that_a_client_has_received_are_acknowledged():
    """As its kernel reports them."""

    ended = asyncio.Event()

    async def read(reader: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
        await reader.read()
        other.close()
        ended.set()

    async def run() -> None:
        server = await asyncio.start_server(read, "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"x" * 1000)
            async with asyncio.timeout(240):
                while _delivered(writer.transport).acknowledged < 1000:  # type: ignore[arg-type]
                    await asyncio.sleep(0.01)
            writer.close()
            await ended.wait()

    asyncio.run(run())


def test_a_connection_whose_socket_tells_nothing_has_only_what_waits():
    """One that was closed, one of Unix, and a transport without a socket."""
    closed, (unix, other) = socket.socket(), socket.socketpair()
    closed.close()
    with unix, other:
        for known in (closed, unix, None):
            transport = SimpleNamespace(get_extra_info={"socket": known}.get, get_write_buffer_size=lambda: 7)
            assert _delivered(transport) == _Delivered(acknowledged=0, waiting=7)  # type: ignore[arg-type]
