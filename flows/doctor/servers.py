"""Prefect's and MLflow's servers, or the ports that those of this machine would take."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

import httpx

from flows.doctor.finding import Finding, State
from flows.stack.login import CLIENT, login, login_file
from flows.stack.servers import prefect_service
from flows.stack.service import port_is_free
from grpo.credentials import masked

_LOGINS = {
    "prefect": f'set {CLIENT}; for the server of this home: eval "$(grpo env)"',
    "mlflow": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
}
"""What to do where a server refuses the login."""


def servers(home: Path) -> Iterator[Finding]:
    """The servers that the environment names, or the ports that those of this machine would take."""
    url = os.environ.get("PREFECT_API_URL")
    host, port = os.environ["PREFECT_SERVER_API_HOST"], int(os.environ["PREFECT_SERVER_API_PORT"])
    given = os.environ.get(CLIENT)
    if url is None and (url := prefect_service(home).address()) is not None and login_file(home).exists():
        given = login(home)
    if url is not None:
        yield _server("prefect", url, f"{url}/health", f"{url}/admin/version", setting="PREFECT_API_URL", login=given)
    else:
        yield _port("prefect port", host, port, setting="PREFECT_SERVER_API_PORT", taken="problem")
    tracking = os.environ["MLFLOW_TRACKING_URI"].rstrip("/")
    if tracking.startswith(("http:", "https:")):
        user, password = (os.environ.get(f"MLFLOW_TRACKING_{part}") for part in ("USERNAME", "PASSWORD"))
        health, version = f"{tracking}/health", f"{tracking}/version"
        given = f"{user}:{password}" if user and password else None
        yield _server("mlflow", tracking, health, version, setting="MLFLOW_TRACKING_URI", login=given)
    else:
        mlflow_port = int(os.environ["GRPO_MLFLOW_PORT"])
        yield _port("mlflow port", "127.0.0.1", mlflow_port, setting="GRPO_MLFLOW_PORT", taken="warning")


def _server(package: str, url: str, health: str, version: str, *, setting: str, login: str | None) -> Finding:
    """Whether a server answers, and whether it is of the version that is installed here."""
    installed = importlib.metadata.version(package)
    try:
        _get(health, login)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding(
            area="servers",
            name=package,
            state="problem",
            found=f"{masked(url)} does not answer: {masked(str(error), known=url)}",
            remedy=f"start it, or set {setting} to one that runs",
        )
    try:
        served = _get(version, login).strip().strip('"')
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED:
            return Finding(
                area="servers",
                name=package,
                state="problem",
                found=f"{masked(url)} refuses the login",
                remedy=_LOGINS[package],
            )
        served = "a version that it does not tell"
    same = served.split(".")[:2] == installed.split(".")[:2]
    return Finding(
        area="servers",
        name=package,
        state="ok" if same else "warning",
        found=f"{masked(url)} answers, {served}" + ("" if same else f"; installed here is {installed}"),
        remedy="" if same else "run the same version on both sides",
    )


def _get(url: str, login: str | None) -> str:
    """What an address answers; a name and password in it are sent as such."""
    basic = None if login is None else httpx.BasicAuth(*login.partition(":")[::2])
    answer = httpx.get(url, timeout=5, follow_redirects=True, auth=basic)
    answer.raise_for_status()
    return answer.text[:1000]


def _port(name: str, host: str, port: int, *, setting: str, taken: State) -> Finding:
    free = port_is_free(host, port)
    return Finding(
        area="servers",
        name=name,
        state="ok" if free else taken,
        found=f"{host}:{port} is {'free' if free else 'in use by another program'}",
        remedy="" if free else f"set {setting} to a free port",
    )
