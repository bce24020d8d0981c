"""Server of a model in the stack: a process of `grpo serve`, which the supervisor keeps alive until `grpo down`.

`services/served.json` under the home names what it serves. Without the file nothing is served.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo.errors import ConfigError
from grpo.storage.files import write_atomically
from grpo_local.service import Service

_LOAD_S = 900.0
"""Time within which the served version is loaded."""
_END_S = 30.0
"""Time after draining within which the log is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Server of a model: the arguments of `grpo serve`, and the values that the stack needs to watch the process."""

    arguments: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int | None = None
    tls: bool = False
    drain_s: float = 0.0
    """Time that running turns have to end when it is stopped."""


def start_serving(home: Path, served: Served, *, prefect_url: str, mlflow_url: str) -> str:
    """Start the server unless it runs, wait for its model, and leave it to the supervisor. Returns its address.

    Raises `ConfigError` if another server runs already, or if the server ends at its start, e.g. because there are no
    keys or no champion.
    """
    running = _read(home)
    if running is not None and running != served:
        raise ConfigError(
            f"grpo serve {shlex.join(running.arguments)} runs, other than {shlex.join(served.arguments)}; call grpo "
            "down first"
        )
    server = _service(home, served, prefect_url=prefect_url, mlflow_url=mlflow_url)
    server.start()
    address = server.wait()
    write_atomically(served_file(home), json.dumps(asdict(served)))
    return address


def supervised_server(home: Path, *, prefect_url: str, mlflow_url: str) -> Service | None:
    """The server that has to run. None if nothing is served."""
    served = _read(home)
    return None if served is None else _service(home, served, prefect_url=prefect_url, mlflow_url=mlflow_url)


def stop_serving(home: Path) -> None:
    """Stop the server when its running turns have ended."""
    served = _read(home) or Served()
    served_file(home).unlink(missing_ok=True)
    _service(home, served, prefect_url="", mlflow_url="").stop()


def _service(home: Path, served: Served, *, prefect_url: str, mlflow_url: str) -> Service:
    return Service(
        name="serve",
        home=home,
        arguments=("grpo_cli", "serve", *served.arguments),
        scheme="https" if served.tls else "http",
        host=served.host,
        port=served.port,
        remedy="set GRPO_SERVE_PORT to a free port",
        environment={"PREFECT_API_URL": prefect_url or None, "MLFLOW_TRACKING_URI": mlflow_url},
        started_path="/ready",
        start_timeout_s=_LOAD_S,
        stop_timeout_s=served.drain_s + _END_S,
    )


def served_file(home: Path) -> Path:
    """File that says what is served."""
    return home / "services" / "served.json"


def _read(home: Path) -> Served | None:
    if not served_file(home).exists():
        return None
    record = json.loads(served_file(home).read_text(encoding="utf-8"))
    return Served(**{**record, "arguments": tuple(record["arguments"])})
