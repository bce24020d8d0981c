"""Environment variables of servers and packages: records in the home, loopback only, no telemetry, no downloads.

They are set before Prefect, MLflow, Great Expectations or transformers are imported. Variables that are set already
keep their values.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from grpo.storage.credentials import mask_errors, without_login
from grpo.storage.home import home, keep_private
from grpo.storage.hub import OFFLINE

DEFAULT_PORT = "4200"
HEARTBEAT_S = 30
"""Interval of a flow run's heartbeats, the shortest that Prefect has."""
SILENCE_S = 4 * HEARTBEAT_S
"""Time without a heartbeat after which a run is lost."""
PENDING_S = 300
"""Time within which a run begins in a process after a worker took it."""
IMAGE_S = 900
"""The same for a container or a pod, because its image may have to be pulled."""
CANCELLING_S = 300
"""Time within which a run that is being cancelled ends."""
_ADDRESSES = (
    *("PREFECT_API_URL", "PREFECT_API_DATABASE_CONNECTION_URL"),
    *("MLFLOW_TRACKING_URI", "MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
)
_LOGINS = (
    *("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"),
    *("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
)
EXPORTED = "GRPO_EXPORTED_ADDRESSES"
"""Variable with the home and the addresses for which `grpo env` has written exports."""
_SERVERS = {
    "PREFECT_API_URL": ("prefect", ("PREFECT_API_AUTH_STRING",)),
    "MLFLOW_TRACKING_URI": ("mlflow", ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")),
}
"""Variable of the address of each server, the server's name, and the variables of its login."""
_PROXIES = ("http", "https", "all")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_command_start: list[float] = []


def started_at() -> float:
    """Start time of the run. If a `grpo` command started the run, the start time of the command."""
    return _command_start.pop() if _command_start else time.time()


def mark_start() -> None:
    """Use the present time as the start time of the next run."""
    _command_start.append(time.time())


def offline_variables() -> dict[str, str]:
    """Variables that keep every package offline and without telemetry."""
    return {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "GX_ANALYTICS_ENABLED": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    }


def run_variables() -> dict[str, str]:
    """Variables of a flow run that a worker starts: offline, with heartbeats, and patient with Prefect's server.

    Prefect answers 500 while its database is away. Nine tries wait eight minutes in all.
    """
    return {
        **offline_variables(),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
        "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500,504",
        "PREFECT_CLIENT_MAX_RETRIES": "8",
    }


def home_variables(home: Path) -> dict[str, str]:
    """Variables that keep Prefect's and MLflow's records in `home`."""
    return {
        "GRPO_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "prefect" / "storage"),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
        "PREFECT_SERVER_API_PORT": DEFAULT_PORT,
        "PREFECT_LOGGING_EXTRA_LOGGERS": "grpo,grpo_cli,grpo_flows,grpo_local,grpo_tasks",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "GRPO_MLFLOW_PORT": "5000",
        "GRPO_SERVE_PORT": "8000",
        "MLFLOW_TRACKING_URI": f"sqlite:///{home / 'mlflow.db'}",
    }


def apply() -> Path:
    """Set the environment variables, and the umask so that only their owner can read files. Returns the home folder.

    Packages are kept offline. If a config names a model by its id on the hub, it is fetched unless the user forbids it.
    """
    folder = home()
    collect_rarely()
    keep_private()
    _trim()
    bypass_proxies()
    _forget_stopped_servers(folder)
    os.environ.setdefault(OFFLINE, os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "0")
    for name, value in {**offline_variables(), **home_variables(folder)}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")  # otherwise a client of PostgreSQL waits without end
    hide_passwords()
    if os.environ["MLFLOW_TRACKING_URI"].startswith("http"):
        from grpo_local.servers import lend_mlflow_login

        lend_mlflow_login(folder)
    return folder


def exported_addresses(home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The variable by which a later command knows that `grpo env` has set these variables for the servers of `home`."""
    return {EXPORTED: json.dumps({"home": str(home), **{name: variables.get(name) for name in _SERVERS}})}


def _forget_stopped_servers(home: Path) -> None:
    """Unset the addresses that `grpo env` has set for servers of this home, if they do not run there any more.

    Otherwise `grpo up` would wait for these servers instead of starting them.
    """
    try:
        exported = json.loads(os.environ.pop(EXPORTED, "{}"))
    except ValueError:
        return
    if not isinstance(exported, dict) or exported.get("home") != str(home):
        return
    from grpo_local.managed_process import ManagedProcess

    for address, (name, logins) in _SERVERS.items():
        url = exported.get(address)
        if not isinstance(url, str) or os.environ.get(address) != url:
            continue
        running = ManagedProcess(name=name, home=home, arguments=()).address()
        if running is None or not url.startswith(running):
            for variable in (address, *logins):
                os.environ.pop(variable, None)


def _trim() -> None:
    """Remove what a file or a web page adds to a value: blanks around addresses, and line ends of logins.

    An empty address counts as not set. The last blank of a login stays, because a password may end with one.
    """
    for names, around in ((_ADDRESSES, None), (_LOGINS, "\r\n")):
        for name in names:
            if (value := os.environ.get(name)) is not None:
                os.environ[name] = value.strip(around)
    for name in _ADDRESSES:
        if os.environ.get(name) == "":
            del os.environ[name]


def bypass_proxies() -> None:
    """Reach the servers of this machine without the proxy that the environment names.

    A proxy cannot reach the loopback of this machine, and would read the logins of its servers in the requests.
    """
    if not any(os.environ.get(f"{kind}_proxy") or os.environ.get(f"{kind.upper()}_PROXY") for kind in _PROXIES):
        return
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host for text in given.split(",") if (host := text.strip())]
    if hosts != ["*"]:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys((*hosts, *_LOOPBACK)))


def hide_passwords() -> None:
    """Keep passwords out of messages, logs and databases.

    Passwords in the addresses of Prefect's and MLflow's servers move to the variables that both have for passwords, so
    that no package sees an address with a password. Log lines and tracebacks of all packages are masked.
    """
    mask_errors()
    prefect, login = without_login(os.environ.get("PREFECT_API_URL", ""))
    if login is not None:
        os.environ["PREFECT_API_URL"] = prefect
        os.environ.setdefault("PREFECT_API_AUTH_STRING", ":".join(login))
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    mlflow, login = without_login(tracking) if tracking.startswith("http") else (tracking, None)
    if login is not None:
        os.environ["MLFLOW_TRACKING_URI"] = mlflow
        os.environ.setdefault("MLFLOW_TRACKING_USERNAME", login[0])
        os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", login[1])


def enable_debug_logging() -> None:
    """With GRPO_DEBUG=1, log this project's own debug messages to stderr."""
    if os.environ.get("GRPO_DEBUG") != "1":
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    for name in ("grpo", "grpo_cli", "grpo_flows", "grpo_local", "grpo_tasks"):
        logging.getLogger(name).setLevel(logging.DEBUG)
        logging.getLogger(name).addHandler(handler)


@contextmanager
def without_gc() -> Iterator[None]:
    """Import packages without garbage collection, because it takes a fifth of the time and frees nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        collect_rarely()
        gc.enable()


def collect_rarely() -> None:
    """Collect garbage after 10,000 new objects instead of Python's 700, which took a tenth of the CPU of a command.

    A server of a model collects as often as Python does, because its streams wait for a collection
    (`grpo.serving.garbage`).
    """
    gc.set_threshold(10_000, 10, 10)


LEARNER = ("grpo.learner.update", "grpo.learner.inference_backend", "grpo_tasks.execution.executor")
"""Modules that import PyTorch and Prefect. They are imported early, so that the first stages need not wait for them."""


def import_packages(*names: str) -> None:
    """Import slow packages, for example while a server starts."""
    with without_gc():
        for name in names:
            importlib.import_module(name)
