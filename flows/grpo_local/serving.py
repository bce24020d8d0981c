"""Server of a model in the stack: a process of `grpo serve`, which the supervisor keeps alive until `grpo down`.

`services/serve.yaml` under the home has its settings. Without the file nothing is served.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from grpo.config.base import with_absolute_paths
from grpo.config.loading import load_settings
from grpo.config.serving import ServeConfig
from grpo.errors import ConfigError
from grpo.storage.files import write_atomically
from grpo_local.managed_process import ManagedProcess

_LOAD_S = 900.0
"""Time within which the served version is loaded."""
_END_S = 30.0
"""Time after draining within which the log is closed."""


def start_serving(home: Path, config: ServeConfig, *, prefect_url: str, mlflow_url: str) -> str:
    """Start the server unless it runs, wait for its model, and leave it to the supervisor. Returns its address.

    Raises `ConfigError` if a server with other settings runs already, or if the server cannot start, e.g. because the
    home has no keys or the model has no champion.
    """
    file, text = served_file(home), _text(config)
    running = file.read_text(encoding="utf-8") if file.exists() else None
    if running not in (None, text):
        raise ConfigError(f"{_read(home).model} is served already, with other settings ({file}). Call grpo down first")
    write_atomically(file, text)
    server = _service(home, config, prefect_url=prefect_url, mlflow_url=mlflow_url)
    try:
        server.start()
        return server.wait()
    except BaseException:
        if running is None:
            file.unlink()
        raise


def supervised_server(home: Path, *, prefect_url: str, mlflow_url: str) -> ManagedProcess | None:
    """The server that has to run. None if nothing is served."""
    if not served_file(home).exists():
        return None
    return _service(home, _read(home), prefect_url=prefect_url, mlflow_url=mlflow_url)


def stop_serving(home: Path) -> None:
    """Stop the server when its running turns have ended."""
    config = _read(home) if served_file(home).exists() else ServeConfig(model="")
    served_file(home).unlink(missing_ok=True)
    _service(home, config, prefect_url="", mlflow_url="").stop()


def served_file(home: Path) -> Path:
    """File with the settings of what is served."""
    return home / "services" / "serve.yaml"


def _text(config: ServeConfig) -> str:
    """Settings as YAML, with absolute paths, because the supervisor may run in another folder."""
    settings = with_absolute_paths(config).model_dump(mode="json", exclude_defaults=True)
    settings["port"] = config.port  # also the default, for which the environment could have another one
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _read(home: Path) -> ServeConfig:
    return load_settings(served_file(home), ServeConfig)


def _service(home: Path, config: ServeConfig, *, prefect_url: str, mlflow_url: str) -> ManagedProcess:
    return ManagedProcess(
        name="serve",
        home=home,
        arguments=("grpo_cli", "serve", str(served_file(home))),
        scheme="https" if config.tls else "http",
        host=config.host,
        port=config.port,
        remedy="Set GRPO_SERVE_PORT to a free port",
        environment={"PREFECT_API_URL": prefect_url or None, "MLFLOW_TRACKING_URI": mlflow_url},
        started_path="/ready",
        start_timeout_s=_LOAD_S,
        stop_timeout_s=config.drain_s + _END_S,
    )
