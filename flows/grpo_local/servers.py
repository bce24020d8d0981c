"""Prefect's and MLflow's servers of one home: how they are started, and how runs share them.

Commands that run flows enter `prefect_server`. It uses the server that `PREFECT_API_URL` names or that already runs in
this home, and otherwise starts one, which the last of the commands that share it stops. `grpo up` keeps the servers
running instead (`grpo_local.stack`). Prefect's server is a process of its own, because an ephemeral one loses task
records when its process exits.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from grpo.environment_variables import variables_set
from grpo.errors import ConfigError
from grpo.preflight.table import Depth
from grpo.storage.files import storage_errors
from grpo_local.inherited import BUCKETS, INHERITED
from grpo_local.login import (
    HOSTS,
    LOGIN_VARIABLES,
    ORIGINS,
    PASSWORD,
    USERNAME,
    Server,
    login,
    login_file,
    login_place,
    login_variables,
)
from grpo_local.managed_process import ManagedProcess

_SEND_TIMEOUT_S = 10.0
_ANSWER_S = 30.0
WITHOUT_BLOCKS = {
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",  # otherwise a later server takes them for registered
}
"""Variables of a server that does not write the types of blocks into its database at its start."""


def prefect_service(home: Path, *, for_pages: bool = True) -> ManagedProcess:
    """Prefect's server of this home. It is started with its login in the environment, and without keys of others.

    The pages offer types of blocks, e.g. a message to Slack. A server that is started `for_pages` writes these types
    into the database at its start, which takes four seconds of CPU. A server of a single run leaves this to a later
    one.
    """
    host, port = os.environ["PREFECT_SERVER_API_HOST"], int(os.environ["PREFECT_SERVER_API_PORT"])
    origins = ",".join(f"http://{name}:{port}" for name in dict.fromkeys((host, "127.0.0.1", "localhost")))
    return ManagedProcess(
        name="prefect",
        home=home,
        arguments=("grpo_local.prefect_server.app",),
        host=host,
        port=port,
        path="/api",
        remedy="Set PREFECT_SERVER_API_PORT to a free port, or PREFECT_API_URL to a Prefect server that is running",
        inherited=(*INHERITED, "PREFECT_*"),
        environment={
            ORIGINS: os.environ.get(ORIGINS, origins),
            "PREFECT_SERVER_API_BASE_PATH": None,
            **({} if for_pages else WITHOUT_BLOCKS),
        },
        working_folder=home,  # Prefect reads a .env of its working folder, which may be another project's
    )


def mlflow_service(home: Path) -> ManagedProcess:
    """MLflow's server of this home. It is started with its login in the environment, and without keys of others.

    Its artifact folder is the same as for a client that opens the database itself, unless MLFLOW_ARTIFACTS_DESTINATION
    names another place, e.g. a bucket. Clients then send and get files through the server.
    """
    port, files = int(os.environ["GRPO_MLFLOW_PORT"]), home / "mlartifacts"
    hosts = f"127.0.0.1:{port},localhost:{port}"
    database = os.environ["MLFLOW_TRACKING_URI"]
    destination = os.environ.get("MLFLOW_ARTIFACTS_DESTINATION")
    return ManagedProcess(
        name="mlflow",
        home=home,
        arguments=("grpo_local.mlflow_server.app",),
        port=port,
        remedy="Set GRPO_MLFLOW_PORT to a free port",
        inherited=(*INHERITED, "MLFLOW_*", "_MLFLOW_*", *(() if database.startswith("sqlite") else BUCKETS)),
        environment={
            "MLFLOW_HOST": "127.0.0.1",
            "MLFLOW_PORT": str(port),
            "MLFLOW_WORKERS": "1",
            "MLFLOW_BACKEND_STORE_URI": database,
            "MLFLOW_ARTIFACTS_DESTINATION": destination or str(files),
            "MLFLOW_DEFAULT_ARTIFACT_ROOT": "mlflow-artifacts:/" if destination else files.as_uri(),
            HOSTS: os.environ.get(HOSTS, hosts),
        },
    )


def running_prefect_server(home: Path) -> str | None:
    """Address of the Prefect server that PREFECT_API_URL names or that runs in this home. None if there is none."""
    return os.environ.get("PREFECT_API_URL") or prefect_service(home).address()


@contextmanager
def prefect_server(
    home: Path,
    *,
    for_pages: bool = False,
    check: Callable[[Depth], None] = lambda depth: None,
    while_starting: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Provide a Prefect server while the block runs.

    It is the server that PREFECT_API_URL names, with the login of PREFECT_API_AUTH_STRING, else a running one of this
    home, else a new one, with the login of the home. Raises `ConfigError` if another program uses the port.

    Args:
        home: Home of the server.
        for_pages: True if the server is started for its pages, and not only for a run.
        check: Called with `files` first, and with `all` after `while_starting`, while a new server starts. What it
            raises stops that server again. PREFECT_API_URL is not set then, because a new server does not answer yet.
            If the user has set it, the server runs, and `check` is called only with `files`.
        while_starting: Called between the two checks, with the address of the server in the environment.

    """
    if url := os.environ.get("PREFECT_API_URL"):
        check("files")
        while_starting()
        yield url
        return

    def started(url: str) -> None:
        with variables_set({"PREFECT_API_URL": None}):
            check("files")
        os.environ["PREFECT_API_URL"] = url  # a running server may have another port than a new one
        while_starting()
        with variables_set({"PREFECT_API_URL": None}):
            check("all")

    with prefect_environment(home), prefect_service(home, for_pages=for_pages).shared(while_starting=started) as url:
        _require_login("prefect", f"{url}/admin/version", home)
        try:
            yield url
        finally:
            _send_logs()


@contextmanager
def prefect_environment(home: Path) -> Iterator[None]:
    """Set the address and login of this home's server while the block runs. Prefect reads them once, at import."""
    variables = login_variables(home, "prefect")
    with variables_set({"PREFECT_API_URL": prefect_service(home).url, **variables}):
        yield


@contextmanager
def mlflow_server(home: Path) -> Iterator[str]:
    """Serve MLflow on loopback while the block runs, or yield the address of the server that is configured.

    In the block the environment has the login of this home's server, for it and for the processes that use it. A
    configured server gets the login that the user has set, and never the login of the home. Raises `ConfigError` if a
    running server was started with another login.
    """
    if (url := os.environ["MLFLOW_TRACKING_URI"]).startswith("http"):
        yield url
        return
    with storage_errors(str(home)):
        (home / "mlartifacts").mkdir(mode=0o700, parents=True, exist_ok=True)
    with variables_set(login_variables(home, "mlflow")), mlflow_service(home).shared() as url:
        _require_login("mlflow", f"{url}/version", home)
        yield url


def lend_mlflow_login(home: Path) -> None:
    """Set the login of this home's running MLflow server in the environment, if MLFLOW_TRACKING_URI is its address.

    It is not set if the user has set a login. The recorded process must listen at that very address, so that another
    program that answers there, or at another name of this machine, does not get the login.
    """
    if any(os.environ.get(name) for name in (USERNAME, PASSWORD, "MLFLOW_TRACKING_TOKEN")):
        return
    running = ManagedProcess(name="mlflow", home=home, arguments=()).address()
    if running == os.environ["MLFLOW_TRACKING_URI"].rstrip("/") and login_file(home, "mlflow").exists():
        os.environ |= login_variables(home, "mlflow")


def _require_login(server: Server, url: str, home: Path) -> None:
    """Raise `ConfigError` if a server that runs already refuses the login that this process would start it with."""
    user, _, password = login(home, server).partition(":")
    no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # they take .1 s to read, and are for https
    answer = httpx.get(url, auth=(user, password), timeout=_ANSWER_S, verify=no_certificates, trust_env=False)
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise ConfigError(
            f"the server at {url} refuses the login in {login_place(home, server)}, because it "
            f"was started with another login. Stop it, or set {LOGIN_VARIABLES[server]} to its login"
        )


def _send_logs() -> None:
    """Send the remaining logs before the server stops."""
    if (handlers := sys.modules.get("prefect.logging.handlers")) is not None:
        handlers.APILogWorker.drain_all(timeout=_SEND_TIMEOUT_S)
