"""Prefect's server with checks of `Host` and `Origin`: `python -m grpo_flows.local.api`.

Prefect's own command, `prefect server start`, answers requests under any host name, and pages of any origin. Here the
addresses of the server are those of PREFECT_SERVER_CORS_ALLOWED_ORIGINS; a request with another `Host`, or from a page
of another `Origin`, is refused before Prefect sees it, including websockets and requests without a CORS preflight. A
server without a login is not started.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from grpo.errors import ConfigError
from grpo_flows.local import settings
from grpo_flows.local.login import CLIENT, ORIGINS, SERVER, validate_login

_POLICY_VIOLATION = 1008


class TrustedOriginMiddleware:
    """ASGI middleware that refuses requests whose `Host` or `Origin` is not an address of this server."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = frozenset(urlsplit(origin).netloc for origin in self._origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or answer 403."""
        if scope["type"] == "lifespan" or self._is_own(Headers(scope=scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=_POLICY_VIOLATION)(scope, receive, send)
        else:
            text = f"This Host or Origin is not an address of the server; {ORIGINS} lists them.\n"
            await PlainTextResponse(text, status_code=403)(scope, receive, send)

    def _is_own(self, headers: Headers) -> bool:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        return bool(hosts) and self._hosts.issuperset(hosts) and self._origins.issuperset(origins)


def serve() -> None:
    """Serve Prefect's API and pages until this process is stopped.

    Raises `ConfigError` without a login, and where any origin would be allowed.
    """
    with settings.without_gc():
        from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    server = get_current_settings().server
    origins = [origin.strip() for origin in server.api.cors_allowed_origins.split(",")]
    if server.api.auth_string is None:
        raise ConfigError(
            f"a server without a login runs any visitor's code; set {SERVER} here and {CLIENT} for clients"
        )
    validate_login(server.api.auth_string.get_secret_value(), place=SERVER)
    if any(urlsplit(origin).scheme not in ("http", "https") for origin in origins):
        raise ConfigError(
            f"{ORIGINS} is {','.join(origins)}; list the server's own addresses, as http://127.0.0.1:4200"
        )
    # around the application, not in it: its own services (automations) call it in memory, by a host name of their own
    uvicorn.run(
        TrustedOriginMiddleware(create_app(final=True), origins),
        host=server.api.host,
        port=server.api.port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )


if __name__ == "__main__":
    settings.hide_passwords()
    try:
        serve()
    except ConfigError as error:
        sys.exit(f"ConfigError: {error}")
