"""Prefect's and MLflow's servers, or the ports that those of this machine would take."""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from flows.local.checks import CheckResult, State
from flows.local.login import CLIENT, login, login_file
from flows.local.servers import prefect_service
from flows.local.service import port_is_free
from grpo.storage.credentials import masked

PREFECT, MLFLOW = "PREFECT_API_URL", "MLFLOW_TRACKING_URI"
_NAMES = {"prefect": "Prefect's server", "mlflow": "MLflow"}
_TRIES, _PAUSE_S = 3, 1.0
_LOGINS = {
    "prefect": f'set {CLIENT}; for the server of this home: eval "$(grpo env)"',
    "mlflow": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
}
"""Remedy where a server refuses the login."""


def servers(home: Path) -> Iterator[CheckResult]:
    """The servers that the environment names, or the ports that those of this machine would take."""
    yield from named_servers()
    faults = {finding.name: finding for finding in ports()}
    if PREFECT not in os.environ:
        name, running = "prefect port", None
        if name not in faults:
            running = prefect_service(home).address()
        if running is not None:
            given = login(home) if login_file(home).exists() else os.environ.get(CLIENT)
            yield _prefect(running, given)
        else:
            host = os.environ["PREFECT_SERVER_API_HOST"]
            yield faults.get(name) or _port(name, host, setting="PREFECT_SERVER_API_PORT", taken="problem")
    if not _is_server(os.environ[MLFLOW]):
        name = "mlflow port"
        yield faults.get(name) or _port(name, "127.0.0.1", setting="GRPO_MLFLOW_PORT", taken="warning")


def named_servers() -> Iterator[CheckResult]:
    """The servers that the environment names."""
    if (url := os.environ.get(PREFECT)) is not None:
        yield _prefect(url, os.environ.get(CLIENT))
    if _is_server(tracking := os.environ[MLFLOW].rstrip("/")):
        user, password = (os.environ.get(f"MLFLOW_TRACKING_{part}") for part in ("USERNAME", "PASSWORD"))
        given = f"{user}:{password}" if user and password else None
        yield _server("mlflow", tracking, f"{tracking}/health", f"{tracking}/version", setting=MLFLOW, login=given)


def _prefect(url: str, login: str | None) -> CheckResult:
    return _server("prefect", url, f"{url}/health", f"{url}/admin/version", setting=PREFECT, login=login)


def ports() -> Iterator[CheckResult]:
    """The settings of ports that are not ports."""
    for name, setting in (("prefect port", "PREFECT_SERVER_API_PORT"), ("mlflow port", "GRPO_MLFLOW_PORT")):
        text = os.environ[setting]
        if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536):
            yield CheckResult(
                area="servers",
                name=name,
                state="problem",
                found=f"{setting}={text[:40]!r} is not a port",
                remedy=f"set {setting} to a number from 1 to 65535",
                wrong_input=True,
            )


def _is_server(tracking: str) -> bool:
    return tracking.startswith(("http:", "https:"))


def _server(package: str, url: str, health: str, version: str, *, setting: str, login: str | None) -> CheckResult:
    """Whether a server answers, and whether it is of the version that is installed here."""
    installed = importlib.metadata.version(package)
    try:
        _get(health, login, tries=_TRIES)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = masked(str(error) or type(error).__name__, known=url).splitlines()[0]
        return CheckResult(
            area="servers",
            name=package,
            state="problem",
            found=f"{_NAMES[package]} at {masked(url)} does not answer: {reason}",
            remedy=f"start it, or set {setting} to one that runs",
            wrong_input=not isinstance(error, httpx.HTTPError) or isinstance(error, httpx.UnsupportedProtocol),
        )
    try:
        served = _get(version, login).strip().strip('"')
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED:
            return CheckResult(
                area="servers",
                name=package,
                state="problem",
                found=f"{masked(url)} refuses the login",
                remedy=_LOGINS[package],
            )
        served = "a version that it does not tell"
    same = served.split(".")[:2] == installed.split(".")[:2]
    return CheckResult(
        area="servers",
        name=package,
        state="ok" if same else "warning",
        found=f"{masked(url)} answers, {served}" + ("" if same else f"; installed here is {installed}"),
        remedy="" if same else "run the same version on both sides",
    )


def _get(url: str, login: str | None, *, tries: int = 1) -> str:
    """Answer of an address; a name and password in it are sent as such. A dropped connection is tried again."""
    basic = None if login is None else httpx.BasicAuth(*login.partition(":")[::2])
    for left in reversed(range(tries)):
        try:
            answer = httpx.get(url, timeout=5, follow_redirects=True, auth=basic)
            answer.raise_for_status()
            return answer.text[:1000]
        except httpx.UnsupportedProtocol:
            raise
        except httpx.TransportError:
            if not left:
                raise
            time.sleep(_PAUSE_S)
    raise AssertionError("at least one try is made")


def _port(name: str, host: str, *, setting: str, taken: State) -> CheckResult:
    port = int(os.environ[setting])
    free = port_is_free(host, port)
    return CheckResult(
        area="servers",
        name=name,
        state="ok" if free else taken,
        found=f"{host}:{port} is {'free' if free else 'in use by another program'}",
        remedy="" if free else f"set {setting} to a free port",
        wrong_input=not free,
    )
