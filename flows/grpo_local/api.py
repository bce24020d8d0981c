"""Prefect's server with checks of `Host` and `Origin`: `python -m grpo_local.api`.

Prefect's own command, `prefect server start`, answers requests under any host name, and pages of any origin. Here
PREFECT_SERVER_CORS_ALLOWED_ORIGINS lists the server's addresses. A request with another `Host`, or from a page
of another `Origin`, is refused before Prefect sees it, including websockets and requests without a CORS preflight.
Some requests of a page have no `Origin`, e.g. requests for pictures. A browser sends `Sec-Fetch-Site` with them, so
that requests of other pages are refused too. If the server has no login, it is not started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from grpo.errors import ConfigError
from grpo_local import settings
from grpo_local.bounds import uvicorn_options
from grpo_local.login import CLIENT, ORIGINS, SERVER, validate_login
from grpo_local.socket_login import SocketLoginMiddleware

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
                f"This Host or Origin is not an address of the server. {self._variable} lists them. Pages of other "
                "addresses get nothing.\n"
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


def _is_prefect_page(path: str) -> bool:
    """True outside the API and its description, because Prefect answers any other path with its page."""
    return not f"{path}/".startswith(("/api/", "/openapi.json/", "/docs/", "/redoc/"))


def serve() -> None:
    """Serve Prefect's API and pages until this process is stopped.

    Raises `ConfigError` if the login is missing, or if any origin would be allowed.
    """
    os.environ.setdefault("PREFECT_SERVER_EVENTS_CAUSAL_ORDERING", "grpo_local.event_order")
    with settings.without_gc():
        from prefect.server.api.server import create_app

        import grpo_local.lost_runs  # noqa: F401, the server runs the services that are registered
        from grpo_local import outages, state_rules
        from grpo_local.transactions import lock_transactions
    from prefect.settings import get_current_settings

    outages.install()
    state_rules.install()
    server = get_current_settings().server
    origins = [origin.strip() for origin in server.api.cors_allowed_origins.split(",")]
    if server.api.auth_string is None:
        raise ConfigError(
            f"set {SERVER} here and {CLIENT} for clients, because a server without a login runs any visitor's code"
        )
    login = server.api.auth_string.get_secret_value()
    validate_login(login, place=SERVER)
    if any(urlsplit(origin).scheme not in ("http", "https") for origin in origins):
        raise ConfigError(
            f"{ORIGINS} is {','.join(origins)}. List the server's own addresses, as http://127.0.0.1:4200"
        )
    lock_transactions()
    # around the application, not in it: its own services (automations) call it in memory with a host name of their own
    uvicorn.run(
        TrustedOriginMiddleware(
            SocketLoginMiddleware(create_app(final=True), login), origins, is_page=_is_prefect_page
        ),
        host=server.api.host,
        port=server.api.port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
        **uvicorn_options(),
    )


if __name__ == "__main__":
    settings.hide_passwords()
    try:
        serve()
    except ConfigError as error:
        sys.exit(f"ConfigError: {error}")
