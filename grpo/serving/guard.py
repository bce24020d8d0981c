"""Authentication in front of every route: what is not public needs a caller, what has no scope needs `admin`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from grpo.serving.callers import Caller, Scope
from grpo.serving.jwt_tokens import TokenVerifier
from grpo.serving.keys import KeyStore

BODY_BYTES = 4 * 2**20


class Authenticator:
    """Caller of a bearer credential: an API key, or a token where tokens are configured."""

    def __init__(self, keys: KeyStore, tokens: TokenVerifier | None = None) -> None: ...

    def __call__(self, credential: str) -> Caller:
        """Return the caller. Raises `APIError` 401 for an unknown key or an invalid token."""
        raise NotImplementedError


class Guard:
    """ASGI middleware in front of a whole app; the caller is in `scope["state"]["caller"]`."""

    def __init__(
        self,
        app: ASGIApp,
        authenticate: Callable[[str], Caller],
        *,
        public: Collection[str] = (),
        scopes: Mapping[str, Scope] | None = None,
        body_bytes: int = BODY_BYTES,
    ) -> None: ...

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """See ASGI."""
        raise NotImplementedError
