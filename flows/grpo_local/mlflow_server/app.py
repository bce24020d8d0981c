"""MLflow's server behind a login: `python -m grpo_local.mlflow_server.app`.

MLflow's own command, `mlflow server`, answers every program that reaches its port, and a program that writes to the
registry decides which model is served. Here a request is refused before MLflow sees it if it does not have the login of
MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, if MLFLOW_SERVER_ALLOWED_HOSTS does not list its `Host`, or if it
comes from a page of another `Origin`. `/health` needs no login. If the server has no login, it is not started. With the
login, only the calls of `calls` are answered, and `places` checks the places of files that a client
names.

MLFLOW_BACKEND_STORE_URI, MLFLOW_ARTIFACTS_DESTINATION, MLFLOW_DEFAULT_ARTIFACT_ROOT, MLFLOW_HOST, MLFLOW_PORT and
MLFLOW_WORKERS have the same meaning as for MLflow's command. Other variables of that command are not read.
"""

from __future__ import annotations

import base64
import hmac
import os
import sys
import tempfile
from pathlib import Path

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from grpo.errors import ConfigError
from grpo.serving.access.guard import closing, has_body, without_body
from grpo.storage.databases import exclusive, make_tracking
from grpo_local import settings
from grpo_local.bounds import Admitted, uvicorn_options
from grpo_local.login import HOSTS, LOGIN_REMEDIES, PASSWORD, USERNAME, given_login
from grpo_local.mlflow_server.calls import CallMiddleware
from grpo_local.mlflow_server.places import PlaceMiddleware, is_place
from grpo_local.origins import POLICY_VIOLATION, TrustedOriginMiddleware

HEALTH = "/health"
_PRIVATE = 0o077
"""umask of the server: only their owner can read the files that it writes."""


class LoginMiddleware:
    """ASGI middleware that answers 401 if a request does not have the login, except for probes of `/health`.

    The login is HTTP Basic, because MLflow's clients send it, and a browser asks its user for it. WebSockets without it
    are refused as well.
    """

    def __init__(self, app: ASGIApp, login: str) -> None:
        self._app = app
        self._credentials = base64.b64encode(login.encode("ascii"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or refuse it."""
        if scope["type"] == "lifespan" or self._has_login(Headers(scope=scope)):
            await self._app(scope, receive, send)
        elif _is_probe(scope):  # answered without its body, which anyone could send
            await self._app(scope, without_body(receive), closing(send) if has_body(scope) else send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=POLICY_VIOLATION)(scope, receive, send)
        else:
            message = f"the login of this server is missing or wrong. {LOGIN_REMEDIES['mlflow']}"
            refusal = {"error_code": "UNAUTHENTICATED", "message": message}  # in the form of MLflow's own errors
            headers = {"WWW-Authenticate": 'Basic realm="MLflow", charset="UTF-8"'}
            await JSONResponse(refusal, status_code=401, headers=headers)(scope, receive, send)

    def _has_login(self, headers: Headers) -> bool:
        given = headers.getlist("authorization")
        scheme, _, credentials = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        return scheme.lower() == "basic" and hmac.compare_digest(credentials.encode("latin-1"), self._credentials)


def _is_probe(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD")


def application() -> ASGIApp:
    """MLflow's application behind its guards. Each worker process of the server makes one.

    Raises `ConfigError` if the login is missing, if any host name would be answered, or if the root is not an address.
    """
    login = given_login("mlflow")
    if login is None:
        raise ConfigError(
            f"set {USERNAME} and {PASSWORD}, here and for clients, because without a login every client that reaches "
            "the server can decide which model is served"
        )
    hosts = [host.strip() for host in os.environ.get(HOSTS, "").split(",") if host.strip()]
    if not hosts or any("*" in host for host in hosts):
        raise ConfigError(f"{HOSTS} is {','.join(hosts)!r}. List the server's own addresses, e.g. 127.0.0.1:5000")
    with settings.without_gc():
        from mlflow.server.fastapi_app import app

    origins = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
    if not is_place(_root()):
        raise ConfigError(f"MLFLOW_DEFAULT_ARTIFACT_ROOT is {_root()!r}. Set it to an address, e.g. s3://bucket/runs")
    places = PlaceMiddleware(app, _root(), _arrivals())
    guarded = LoginMiddleware(Admitted(CallMiddleware(places), public=HEALTH), login)
    return TrustedOriginMiddleware(guarded, origins, is_page=lambda path: path == "/", variable=HOSTS)


def _root() -> str:
    """Address below which the server keeps files."""
    return os.environ.get("MLFLOW_DEFAULT_ARTIFACT_ROOT", "mlflow-artifacts:/")


def _arrivals() -> Path:
    """Folder in which MLflow writes a file while it arrives. Files for a bucket go to a temporary one first."""
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import is_local_uri

    files = os.environ.get("MLFLOW_ARTIFACTS_DESTINATION", "")
    return Path(local_file_uri_to_path(files) if files and is_local_uri(files) else tempfile.gettempdir())


def serve() -> None:
    """Serve MLflow's API and pages until this process is stopped.

    Raises `ConfigError` like `application`, and if the database is unusable.
    """
    os.umask(_PRIVATE)
    _configure()
    application()
    uvicorn.run(
        "grpo_local.mlflow_server.app:application",
        factory=True,
        host=os.environ.get("MLFLOW_HOST", "127.0.0.1"),
        port=int(os.environ.get("MLFLOW_PORT", "5000")),
        workers=int(os.environ.get("MLFLOW_WORKERS", "1")),
        log_level="warning",
        **uvicorn_options(),
    )


def _configure() -> None:
    """Open the stores, and set the variables by which `mlflow server` configures its worker processes."""
    from mlflow.server import constants
    from mlflow.server.handlers import initialize_backend_stores

    try:
        database, files = (os.environ[name] for name in ("MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"))
    except KeyError as error:
        raise ConfigError(
            f"{error.args[0]} is not set. Set it, because MLflow's server needs the address of its database in "
            "MLFLOW_BACKEND_STORE_URI, and the place of its files in MLFLOW_ARTIFACTS_DESTINATION"
        ) from None
    root = _root()
    with exclusive(database):
        make_tracking(database)
        initialize_backend_stores(database, database, root)
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: database,
        constants.REGISTRY_STORE_URI_ENV_VAR: database,
        constants.ARTIFACT_ROOT_ENV_VAR: root,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: files,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        "_MLFLOW_IN_JOB_EXECUTOR": "false",  # a job may run the code of scorers, and the server may not
    }


if __name__ == "__main__":
    settings.hide_passwords()
    try:
        serve()
    except ConfigError as error:
        sys.exit(f"ConfigError: {error}")
