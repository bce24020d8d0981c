"""Server of a model in the stack: a process of `grpo serve`, which the supervisor keeps alive until `grpo down`.

What it serves is in `services/served.json` under the home; without the file nothing is served.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo.errors import ConfigError
from grpo.storage.files import write_atomically
from grpo_flows.local.service import Service

_DRAIN_S = 60
_END_S = 30.0
"""Time after draining in which the log is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model that is served, as `grpo serve` takes it."""

    model: str
    consent: str = ""


def start_serving(home: Path, served: Served, *, prefect_url: str, mlflow_url: str) -> str:
    """Start the server unless it runs, wait until it answers, and leave it to the supervisor; returns its address.

    Raises `ConfigError` for another model that is served already, or a server that ends at its start, as it does
    without keys or without a champion.
    """
    running = _read(home)
    if running is not None and running != served:
        raise ConfigError(f"{running.model} is served with consent {running.consent!r}; call grpo down first")
    server = _service(home, served, prefect_url=prefect_url, mlflow_url=mlflow_url)
    server.start()
    address = server.wait()
    write_atomically(_file(home), json.dumps(asdict(served)))
    return address


def supervised_server(home: Path, *, prefect_url: str, mlflow_url: str) -> Service | None:
    """The server that is to run; None where nothing is served."""
    served = _read(home)
    return None if served is None else _service(home, served, prefect_url=prefect_url, mlflow_url=mlflow_url)


def stop_serving(home: Path) -> None:
    """Stop the server when its running turns have ended."""
    _file(home).unlink(missing_ok=True)
    _service(home, Served(model=""), prefect_url="", mlflow_url="").stop()


def _service(home: Path, served: Served, *, prefect_url: str, mlflow_url: str) -> Service:
    port = os.environ["GRPO_SERVE_PORT"]
    return Service(
        name="serve",
        home=home,
        arguments=(
            *("grpo_flows.cli", "serve", served.model, "--port", port),
            *("--consent", served.consent, "--drain-s", str(_DRAIN_S)),
        ),
        port=int(port),
        remedy="set GRPO_SERVE_PORT to a free port",
        environment={"PREFECT_API_URL": prefect_url or None, "MLFLOW_TRACKING_URI": mlflow_url},
        stop_timeout_s=_DRAIN_S + _END_S,
    )


def _file(home: Path) -> Path:
    return home / "services" / "served.json"


def _read(home: Path) -> Served | None:
    if not _file(home).exists():
        return None
    return Served(**json.loads(_file(home).read_text(encoding="utf-8")))
