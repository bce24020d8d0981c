"""Authentication in front of every route: what is not public needs a caller, what has no scope needs `admin`.

Headers and bodies are bounded here as well, before an app reads them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from grpo.errors import GRPOError
from grpo.serving.api_errors import SERVER_ERROR, APIError, error_response, invalid_request
from grpo.serving.callers import SCOPES, Caller, Scope
from grpo.serving.jwt_tokens import TokenError, TokenVerifier
from grpo.serving.keys import PREFIX, KeyStore

BODY_BYTES = 4 * 2**20
_HEADER_BYTES = 64 * 2**10
_DISCARDED_BODIES = 8
"""An oversized body is read up to this multiple of the bound: a connection that is reset earlier loses the 413."""
_BODY_TIMEOUT_S = 60.0
_RETRY_S = 10.0
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
logger = logging.getLogger(__name__)


class Authenticator:
    """Caller of a bearer credential: an API key, or a token where tokens are configured."""

    def __init__(self, keys: KeyStore, tokens: TokenVerifier | None = None) -> None:
        self._keys, self._tokens = keys, tokens

    def __call__(self, credential: str) -> Caller:
        """Return the caller. Raises `APIError` 401 for an unknown key or an invalid token."""
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
    """ASGI middleware in front of a whole app; the caller is in `scope["state"]["caller"]`.

    `scope["state"]["authorize"]()` checks the credential again, for a connection that outlives its key.

    `public` are exact paths without authentication. `scopes` are path prefixes of whole segments: `/v1/chat` holds for
    `/v1/chat/completions`, not for `/v1/chats`; the longest counts. `check_room` raises `APIError` for a path whose
    requests would exceed the server's capacity: they are refused before their bodies are read and parsed.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticate: Callable[[str], Caller],
        *,
        public: Collection[str] = (),
        scopes: Mapping[str, Scope] | None = None,
        body_bytes: int = BODY_BYTES,
        check_room: Callable[[str], None] = lambda path: None,
    ) -> None:
        self._app, self._authenticate, self._body_bytes = app, authenticate, body_bytes
        self._check_room = check_room
        self._public = frozenset(public)
        ordered = sorted((scopes or {}).items(), key=lambda entry: len(entry[0]), reverse=True)
        self._scopes = [(prefix.rstrip("/"), scope) for prefix, scope in ordered]
        assert all(scope in SCOPES for _, scope in self._scopes)

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if connection["type"] == "lifespan":
            await self._app(connection, receive, send)
            return
        try:
            self._admit(connection)
            if connection["type"] == "http":
                receive = await self._bounded(connection, receive)
        except APIError as error:
            await _refuse(error_response(error), connection, receive, send)
            return
        except _ClientGone:
            return
        await self._app(connection, receive, send)

    def _admit(self, connection: Connection) -> None:
        """Put the caller into the connection's state, or raise `APIError`."""
        headers: list[tuple[bytes, bytes]] = connection["headers"]
        if sum(len(name) + len(value) for name, value in headers) > _HEADER_BYTES:
            raise APIError(431, f"the headers have more than {_HEADER_BYTES} bytes", code="headers_too_large")
        path = _route_path(connection)
        if path in self._public:
            return
        credential = _credential([value for name, value in headers if name.lower() == b"authorization"])
        authorize = partial(self._authorize, credential, path)
        connection["state"] = {**connection.get("state", {}), "caller": authorize(), "authorize": authorize}
        self._check_room(path)

    def _authorize(self, credential: str, path: str) -> Caller:
        """Caller of a credential with the scope of a path; raises `APIError`."""
        try:
            caller = self._authenticate(credential)
        except GRPOError as error:
            logger.error("no request is admitted, because credentials cannot be checked: %s", error)
            message = "credentials cannot be checked now; the log of the server has the cause"
            raise APIError(503, message, type=SERVER_ERROR, retry_after_s=_RETRY_S) from error
        needed = self._scope(path)
        if needed not in caller.scopes:
            message = f"this address needs the scope {needed}; key {caller.name} has {_listed(caller)}"
            raise APIError(403, message, type="permission_error", code="insufficient_scope")
        return caller

    def _scope(self, path: str) -> Scope:
        matches = (scope for prefix, scope in self._scopes if path == prefix or path.startswith(f"{prefix}/"))
        return next(matches, "admin")

    async def _bounded(self, connection: Connection, receive: Receive) -> Receive:
        """Read the body within its bound, and return a `receive` that gives it to the app at once."""
        declared = next((value for name, value in connection["headers"] if name.lower() == b"content-length"), b"0")
        too_large = APIError(413, f"the body has more than {self._body_bytes} bytes", code="request_too_large")
        discarded = _DISCARDED_BODIES * self._body_bytes
        if not declared.isdigit() or len(declared) > 18:
            raise APIError(400, "content-length is not a number of bytes", code="invalid_header")
        if int(declared) > discarded:
            too_large.headers["connection"] = "close"
            raise too_large
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                body, size = await _read(receive, keep=self._body_bytes, most=discarded)
        except TimeoutError as error:
            message = f"the body did not arrive within {_BODY_TIMEOUT_S:.0f} s"
            raise APIError(408, message, code="request_timeout", headers={"connection": "close"}) from error
        if size > self._body_bytes:
            too_large.headers["connection"] = "close"
            raise too_large
        if not encodable(body):
            raise invalid_request(
                "the body is not UTF-8, or holds half of a surrogate pair, which UTF-8 cannot hold", code="invalid_text"
            )
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return pending.pop() if pending else await receive()

        return receive_body


class _ClientGone(Exception):
    """The client has closed the connection before its body was complete."""


def unauthorized(message: str, *, code: str | None = None) -> APIError:
    """401 with the scheme that is accepted."""
    return APIError(401, message, code=code, headers={"www-authenticate": "Bearer"})


def encodable(document: bytes | str) -> bool:
    r"""Return False for JSON with a lone surrogate, as `"\ud800"`, and for bytes that are not UTF-8.

    Python's parser takes UTF-16 and encoded surrogates as well. Other text, JSON or not, is left to its parser.
    """
    content = document.encode(errors="surrogatepass") if isinstance(document, str) else document
    if b"\0" in content:  # UTF-16 or UTF-32; in JSON it is an escape
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    if _SURROGATE.search(content) is None:
        return True
    try:
        json.dumps(json.loads(content), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except (ValueError, RecursionError):
        return True
    return True


def _credential(values: list[bytes]) -> str:
    """The bearer credential of the Authorization headers."""
    if len(values) == 1:
        scheme, _, credential = values[0].decode("latin-1").strip().partition(" ")
        if scheme.lower() == "bearer" and credential.strip():
            return credential.strip()
    raise unauthorized("send one header `Authorization: Bearer KEY`", code="missing_api_key" if not values else None)


def _route_path(connection: Connection) -> str:
    """The path that routes are matched with: without the prefix that a proxy has added."""
    path: str = connection["path"]
    root: str = connection.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _listed(caller: Caller) -> str:
    return ", ".join(sorted(caller.scopes)) or "none"


async def _read(receive: Receive, *, keep: int, most: int) -> tuple[bytes, int]:
    """The body up to `keep` bytes, and its size, read up to `most` bytes."""
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
    """Answer a request, or a WebSocket's handshake by an HTTP response where the server can, else by a close."""
    if connection["type"] == "http":
        await response(connection, receive, send)
        return
    await receive()  # websocket.connect
    if "websocket.http.response" in connection.get("extensions", {}):
        await response(connection, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": "not authorized"})
