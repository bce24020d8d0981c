"""Authentication in front of every route: every path that is not public needs a caller with the scope of the path.

A path without a scope needs `admin`. Headers, bodies and WebSockets are bounded here as well, before an app reads them.
Refused requests are charged to their caller, see `grpo.serving.access.refused_work`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from grpo.config.serving import BODY_BYTES
from grpo.errors import GRPOError
from grpo.serving.access.callers import SCOPES, Caller, Scope
from grpo.serving.access.connections import admit
from grpo.serving.access.jwt_tokens import TokenError, TokenVerifier
from grpo.serving.access.keys import PREFIX, KeyStore
from grpo.serving.access.limits import Limiter
from grpo.serving.access.preparation import AT_ONCE, Preparation, measure_cpu, take_cpu_s
from grpo.serving.access.refused_work import RefusedWork, Tarpit, UnauthenticatedRequests, UsedUp
from grpo.serving.protocol.api_errors import SERVER_ERROR, APIError, error_response, invalid_request
from grpo.serving.protocol.json_bounds import encodable

SMALL_BODY_BYTES = 256 * 2**10
"""Most bytes of a body for a route that does not generate, because the event loop parses it in a few milliseconds."""
BODIES = 64
"""Most bodies of one key that may arrive at once."""
SOCKETS, SOCKETS_WITH_PARALLEL = 256, 16
"""Most open WebSockets of one key. If it is limited to N parallel requests, it is max(N, `SOCKETS_WITH_PARALLEL`)."""
_HEADER_BYTES = 64 * 2**10
_DISCARDED_BODIES = 8
"""An oversized body is read up to this multiple of the bound, because an earlier reset would lose the 413."""
_BODY_TIMEOUT_S = 60.0
_WRITING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_RETRY_S, _AT_ONCE_RETRY_S = 10.0, 1.0
_WITHOUT_CALLER = frozenset({401, 403, 431})
logger = logging.getLogger(__name__)


class Authenticator:
    """Caller of a bearer credential, which is an API key, or a token if tokens are configured."""

    def __init__(self, keys: KeyStore, tokens: TokenVerifier | None = None) -> None:
        self._keys, self._tokens = keys, tokens

    def __call__(self, credential: str) -> Caller:
        """Return the caller. Raises `APIError` 401 if the key is unknown or the token is invalid."""
        if self._tokens is not None and not credential.startswith(PREFIX) and credential.count(".") == 2:
            try:
                return self._tokens.caller(credential)
            except TokenError as error:
                raise unauthorized(f"the token is not valid: {error}", code="invalid_token") from error
        caller = self._keys.caller(credential)
        if caller is None:
            raise unauthorized("the API key is not known, or was revoked", code="invalid_api_key")
        return caller


class Guard:
    """ASGI middleware in front of a whole app, which puts the caller into `scope["state"]["caller"]`.

    A connection may outlive its key, so `scope["state"]["authorize"]()` checks the credential again.
    `scope["state"]["charge"](bytes)` charges a refused frame of a WebSocket.

    `public` are exact paths without authentication. `scopes` are path prefixes of whole segments: `/v1/chat` applies to
    `/v1/chat/completions`, but not to `/v1/chats`. If several match, the longest counts. `large` are exact paths with
    bodies of up to `body_bytes`. The bodies of other paths may have up to `SMALL_BODY_BYTES`. `check_room` raises
    `APIError` if a request to a path would exceed the server's capacity or the caller's limits, so that it is refused
    before its body is read and parsed. `check_known` raises it if no route has the path in this protocol, `http` or
    `websocket`. If the path is not public, it is only called for a caller with a valid credential. Bodies of paths
    below `streamed` are not read here, because a file may not fit into memory. Their route must bound them. `exact` are
    paths that may end in slashes, which are dropped before any check.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticate: Callable[[str], Caller],
        *,
        public: Collection[str] = (),
        scopes: Mapping[str, Scope] | None = None,
        large: Collection[str] | None = None,
        streamed: str | None = None,
        exact: Collection[str] = (),
        body_bytes: int = BODY_BYTES,
        check_room: Callable[[str, Caller], Awaitable[None]] | None = None,
        check_known: Callable[[str, str], None] = lambda path, protocol: None,
        refused_work: RefusedWork | None = None,
        preparation: Preparation | None = None,
    ) -> None:
        self._app, self._authenticate, self._body_bytes = app, authenticate, body_bytes
        self._check_room, self._check_known = check_room, check_known
        self._refused_work = refused_work or RefusedWork(Limiter())
        self._preparation = preparation or Preparation()
        self._large = None if large is None else frozenset(large)
        self._streamed = None if streamed is None else f"{streamed}/"
        self._public, self._exact = frozenset(public), frozenset(exact)
        ordered = sorted((scopes or {}).items(), key=lambda entry: len(entry[0]), reverse=True)
        self._scopes = [(prefix.rstrip("/"), scope) for prefix, scope in ordered]
        self._arriving: Counter[str] = Counter()
        self._tarpit = Tarpit()
        self._unauthenticated = UnauthenticatedRequests()
        self.sockets: Counter[str] = Counter()
        """Number of open WebSockets by the hash of their key."""
        assert all(scope in SCOPES for _, scope in self._scopes)

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if connection["type"] == "lifespan":
            await self._app(connection, receive, send)
            return
        path = _route_path(connection)
        if (exact := path.rstrip("/")) in self._exact:
            connection["path"] = connection["path"].removesuffix(path) + exact
        try:
            caller = await self._admit(connection)
        except APIError as error:
            if isinstance(error, UsedUp):
                await self._tarpit(connection["state"]["caller"].key_hash)
            elif error.status in _WITHOUT_CALLER and self._unauthenticated.is_flood(sender := _address(connection)):
                await self._tarpit(sender)
            await _refuse(error_response(error), connection, receive, send)
            return
        if caller is not None:
            admit(connection)
        measure_cpu()
        if connection["type"] == "http":
            await self._answer(caller, connection, receive, send)
        else:
            await self._open(caller, connection, receive, send)

    async def _answer(self, caller: Caller | None, connection: Connection, receive: Receive, send: Send) -> None:
        """Answer an HTTP request. If it is refused, its caller is charged.

        The body of a public path is not read, because its sender needs no key, and could keep the server waiting.
        """
        size = 0

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start" and caller is not None:
                self._charge(caller, size, status=message["status"])
            await send(message)

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            return message

        if caller is None:
            if not has_body(connection):
                await self._app(connection, without_body(receive), send)
                return
            await self._tarpit(_address(connection))
            await self._app(connection, without_body(receive), closing(send))
            return
        is_streamed = self._streamed is not None and _route_path(connection).startswith(self._streamed)
        try:
            _check_coding(connection)
            body = receive_counted if is_streamed else await self._bounded(caller, connection, receive_counted)
        except APIError as error:
            if error.status == 429:
                await self._tarpit(caller.key_hash)
            await _refuse(error_response(error), connection, receive, count)
            return
        except _ClientGone:
            self._charge(caller, size)
            return
        await self._app(connection, body, count)

    async def _open(self, caller: Caller | None, connection: Connection, receive: Receive, send: Send) -> None:
        """Open a WebSocket, which counts as one of its caller's WebSockets from the handshake until it ends."""
        if caller is None:
            await self._app(connection, receive, send)
            return
        parallel = caller.limits.parallel
        most = SOCKETS if parallel is None else max(parallel, SOCKETS_WITH_PARALLEL)
        if self.sockets[caller.key_hash] >= most:
            message = f"this key has {most} WebSockets open, which is its limit. Close one, or use one for all requests"
            error = _too_many(message)
            await self._tarpit(caller.key_hash)
            await _refuse(error_response(error), connection, receive, send)
            return
        with _counted(self.sockets, caller.key_hash):
            await self._app(connection, receive, send)

    async def _admit(self, connection: Connection) -> Caller | None:
        """Put the caller into the connection's state. None for a public path. Raises `APIError` if it is refused."""
        headers: list[tuple[bytes, bytes]] = connection["headers"]
        if sum(len(name) + len(value) for name, value in headers) > _HEADER_BYTES:
            raise APIError(431, f"the headers have more than {_HEADER_BYTES} bytes", code="headers_too_large")
        path = _route_path(connection)
        if path in self._public:
            self._check_known(path, connection["type"])
            return None
        credential = _credential([value for name, value in headers if name.lower() == b"authorization"])
        authorize = partial(self._authorize, credential, path, connection["type"])
        caller = authorize()
        state = {"caller": caller, "authorize": authorize, "charge": partial(self._charge, caller)}
        connection["state"] = {**connection.get("state", {}), **state}
        if connection["type"] == "websocket" or connection["method"] in _WRITING or has_body(connection):
            self._refused_work.check(caller)
        if self._check_room is not None:
            await self._check_room(path, caller)
        return caller

    def _charge(self, caller: Caller, size: int, *, status: int = 400) -> None:
        """Charge a refused request or frame, with the CPU time that the connection has used since the last one."""
        self._refused_work.charge(caller, size, status=status, cpu_s=take_cpu_s())

    def _authorize(self, credential: str, path: str, protocol: str) -> Caller:
        """Caller of a credential. Raises `APIError` if it is not valid, or does not have the scope of the path."""
        try:
            caller = self._authenticate(credential)
        except GRPOError as error:
            logger.error("no request is admitted, because credentials cannot be checked: %s", error)
            message = "credentials cannot be checked now. The log of the server has the cause"
            raise APIError(503, message, type=SERVER_ERROR, retry_after_s=_RETRY_S) from error
        self._check_known(path, protocol)
        needed = self._scope(path)
        if needed not in caller.scopes:
            message = f"this address needs the scope {needed}. Key {caller.name} has {caller.listed}"
            raise APIError(403, message, type="permission_error", code="insufficient_scope")
        return caller

    def _scope(self, path: str) -> Scope:
        matches = (scope for prefix, scope in self._scopes if path == prefix or path.startswith(f"{prefix}/"))
        return next(matches, "admin")

    async def _bounded(self, caller: Caller, connection: Connection, receive: Receive) -> Receive:
        """Read the body within its bound, and return a `receive` that gives it to the app at once."""
        key = caller.key_hash
        is_large = self._large is None or _route_path(connection) in self._large
        most = self._body_bytes if is_large else min(self._body_bytes, SMALL_BODY_BYTES)
        declared = next((value for name, value in connection["headers"] if name.lower() == b"content-length"), b"0")
        too_large = APIError(413, f"the body has more than {most} bytes", code="request_too_large")
        discarded = _DISCARDED_BODIES * most
        if not declared.isdigit() or len(declared) > 18:
            raise APIError(400, "content-length is not a number of bytes", code="invalid_header")
        if int(declared) > discarded:
            too_large.headers["connection"] = "close"
            raise too_large
        if self._arriving[key] >= BODIES:
            raise _too_many(f"{BODIES} bodies of this key arrive at once, which is its limit", close=True)
        try:
            with _counted(self._arriving, key):
                async with asyncio.timeout(_BODY_TIMEOUT_S):
                    body, size = await _read(receive, keep=most, most=discarded)
        except TimeoutError as error:
            message = f"the body did not arrive within {_BODY_TIMEOUT_S:.0f} s"
            raise APIError(408, message, code="request_timeout", headers={"connection": "close"}) from error
        if size > most:
            too_large.headers["connection"] = "close"
            raise too_large
        if len(body) <= AT_ONCE:
            is_text = encodable(body)
        else:
            is_text = await self._preparation.run(key, len(body), partial(encodable, body))
        if not is_text:
            raise invalid_request(
                "the body is not UTF-8, or holds half of a surrogate pair, which UTF-8 cannot hold", code="invalid_text"
            )
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return pending.pop() if pending else await receive()

        return receive_body


def has_body(connection: Connection) -> bool:
    """True if the head of a request announces a body."""
    headers = {name.lower(): value for name, value in connection["headers"]}
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _check_coding(connection: Connection) -> None:
    """Raise `APIError` 415 if the body is compressed, because the size of its text would not be bounded."""
    coding = b",".join(value for name, value in connection["headers"] if name.lower() == b"content-encoding")
    if has_body(connection) and not {part.strip().lower() for part in coding.split(b",")} <= {b"", b"identity"}:
        named = coding.decode("latin-1")[:64]
        message = f"content-encoding: this server does not read {named}; send the body without compression"
        raise APIError(415, message, code="unsupported_encoding", headers={"accept-encoding": "identity"})


def without_body(receive: Receive) -> Receive:
    """A `receive` that returns an empty body, and then waits for the disconnect."""
    pending: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive_nothing() -> Message:
        if pending:
            return pending.pop()
        while (message := await receive())["type"] != "http.disconnect":
            pass
        return message

    return receive_nothing


def closing(send: Send) -> Send:
    """A `send` that closes the connection after its response."""

    async def send_closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return send_closing


@contextmanager
def _counted(counts: Counter[str], key: str) -> Iterator[None]:
    """Count one item of a key while the block runs."""
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


def _too_many(message: str, *, close: bool = False) -> APIError:
    """429 for a key that has too many bodies or WebSockets at once."""
    return APIError(
        429,
        message,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after_s=_AT_ONCE_RETRY_S,
        headers={"connection": "close"} if close else {},
    )


class _ClientGone(Exception):
    """The client has closed the connection before its body was complete."""


def unauthorized(message: str, *, code: str | None = None) -> APIError:
    """401 with a header that names the accepted authentication scheme."""
    return APIError(401, message, code=code, headers={"www-authenticate": "Bearer"})


def _credential(values: list[bytes]) -> str:
    """Bearer credential of the Authorization headers. Raises `APIError` 401 unless there is exactly one."""
    if len(values) == 1:
        scheme, _, credential = values[0].decode("latin-1").strip().partition(" ")
        if scheme.lower() == "bearer" and credential.strip():
            return credential.strip()
    raise unauthorized("send one header `Authorization: Bearer KEY`", code="missing_api_key" if not values else None)


def _address(connection: Connection) -> str:
    """Address of the client. Several clients may share it if they are behind a proxy."""
    return f"address {(connection.get('client') or ('unknown', 0))[0]}"


def _route_path(connection: Connection) -> str:
    """Path that routes are matched with, without the prefix that a proxy has added."""
    path: str = connection["path"]
    root: str = connection.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


async def _read(receive: Receive, *, keep: int, most: int) -> tuple[bytes, int]:
    """Read a body, and return up to `keep` bytes of it, and its size. Reading stops after more than `most` bytes."""
    chunks, size, more = [], 0, True
    while more and size <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        size += len(chunk := message.get("body", b""))
        if size <= keep:
            chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks), size


async def _refuse(response: Response, connection: Connection, receive: Receive, send: Send) -> None:
    """Send the response. A WebSocket's handshake is closed instead if the server cannot answer it with a response."""
    if connection["type"] == "http":
        await response(connection, receive, send)
        return
    await receive()  # websocket.connect
    if "websocket.http.response" in connection.get("extensions", {}):
        await response(connection, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": "not authorized"})
