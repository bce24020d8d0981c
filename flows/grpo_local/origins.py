"""Checks of `Host` and `Origin`, by which a server on this machine refuses the pages of others.

A request with another `Host`, or from a page of another `Origin`, is refused. Some requests of a page have no `Origin`,
e.g. requests for pictures. A browser sends `Sec-Fetch-Site` with them, so that requests of other pages are refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from grpo_local.login import ORIGINS

POLICY_VIOLATION = 1008
_OWN_SITES = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` for a page of the server itself, and for a user who has typed an address."""
_NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
"""Headers of a request that opens a page of its own. The page with the link cannot read the answer."""


class TrustedOriginMiddleware:
    """ASGI middleware that refuses requests from pages of others, and to addresses that this server does not have.

    A program sends neither `Origin` nor `Sec-Fetch-Site`. A browser sends at least one for each request of a page,
    except over plain http to another machine, when it leaves out both for pictures and the like.
    """

    def __init__(
        self, app: ASGIApp, origins: Iterable[str], *, is_page: Callable[[str], bool], variable: str = ORIGINS
    ) -> None:
        """Store the checks. `is_page` is true for paths that other pages may link to.

        A refusal names `variable`, which lists the addresses.
        """
        self._app = app
        self._is_page = is_page
        self._variable = variable
        self._origins = frozenset(origins)
        self._hosts = frozenset(urlsplit(origin).netloc for origin in self._origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or answer 403."""
        if scope["type"] == "lifespan" or self._is_own(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=POLICY_VIOLATION)(scope, receive, send)
        else:
            text = (
                f"The Host or Origin of this request is not an address of the server, so it is refused. "
                f"{self._variable} lists the addresses.\n"
            )
            await PlainTextResponse(text, status_code=403)(scope, receive, send)

    def _is_own(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if not hosts or not self._hosts.issuperset(hosts) or not self._origins.issuperset(origins):
            return False
        # an Origin of this server is enough: its pages at localhost may ask for 127.0.0.1, which is another site
        return bool(origins) or _OWN_SITES.issuperset(headers.getlist("sec-fetch-site")) or self._is_link(scope)

    def _is_link(self, scope: Scope) -> bool:
        """True for a page of the server that the browser opens because its user has followed a link."""
        headers = Headers(scope=scope)
        is_navigation = all(headers.getlist(name) == [value] for name, value in _NAVIGATION.items())
        return scope["type"] == "http" and scope["method"] == "GET" and is_navigation and self._is_page(scope["path"])
