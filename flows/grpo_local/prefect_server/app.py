"""Prefect's server with checks of `Host` and `Origin`: `python -m grpo_local.prefect_server.app`.

Prefect's own command, `prefect server start`, answers requests under any host name, and pages of any origin. Here
PREFECT_SERVER_CORS_ALLOWED_ORIGINS lists the server's addresses, and other requests are refused before Prefect sees
them (`grpo_local.origins`), including websockets and requests without a CORS preflight. The description of the API is
switched off (`grpo_local.prefect_server.description`). If the server has no login, it is not started. Prefect's own
command keeps flow runs forever, and this server removes them after 90 days.
"""

from __future__ import annotations

import os
import sys
from urllib.parse import urlsplit

import uvicorn

from grpo.errors import ConfigError
from grpo.storage.credentials import masked
from grpo.storage.schemas import refuse_empty
from grpo_local import settings
from grpo_local.bounds import uvicorn_options
from grpo_local.login import CLIENT, ORIGINS, SERVER, validate_login
from grpo_local.origins import TrustedOriginMiddleware
from grpo_local.prefect_server.description import DescriptionMiddleware, is_description
from grpo_local.prefect_server.socket_login import SocketLoginMiddleware
from grpo_local.schemas import require_async_driver


def _is_prefect_page(path: str) -> bool:
    """True outside the API and its description, because Prefect answers any other path with its page."""
    return not f"{path}/".startswith("/api/") and not is_description(path)


def serve() -> None:
    """Serve Prefect's API and pages until this process is stopped.

    Raises `ConfigError` if the login is missing, if any origin would be allowed, or if the database has 0 bytes or an
    address with another driver than an asynchronous one.
    """
    os.environ.setdefault("PREFECT_SERVER_EVENTS_CAUSAL_ORDERING", "grpo_local.prefect_server.event_order")
    os.environ.setdefault("PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED", "events,flow_runs")
    with settings.without_gc():
        from prefect.server.api.server import create_app

        import grpo_local.prefect_server.lost_runs  # noqa: F401, the server runs the services that are registered
        from grpo_local.prefect_server import outages, state_rules
        from grpo_local.prefect_server.transactions import lock_transactions
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
            f"{ORIGINS} is {','.join(origins)}. List the server's own addresses, e.g. http://127.0.0.1:4200"
        )
    if (url := server.database.connection_url) is not None:
        require_async_driver(url.get_secret_value())
        text = url.get_secret_value().replace("+aiosqlite", "")
        refuse_empty(f"the database of Prefect, {masked(text)},", text)
    lock_transactions()
    described = DescriptionMiddleware(create_app(final=True))
    # around the application, not in it: its own services (automations) call it in memory with a host name of their own
    uvicorn.run(
        TrustedOriginMiddleware(SocketLoginMiddleware(described, login), origins, is_page=_is_prefect_page),
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
