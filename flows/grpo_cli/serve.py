"""`grpo serve`: serve a model by OpenAI's chat API, and log its conversations."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo.errors import ConfigError
from grpo.storage.error_lines import log_to_stderr
from grpo_cli.command import Overrides, console, start_command
from grpo_cli.errors import known_failure
from grpo_local import settings

if TYPE_CHECKING:
    from grpo.config.serving import ServeConfig

_REGISTERED = "models:/"
_YAML = (".yaml", ".yml")
_PORT = "GRPO_SERVE_PORT"


def serve(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL_OR_YAML",
            help="Model to serve (models:/NAME@champion, a folder, org/name, file.gguf) or serve.yaml.",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. If left out, 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. If left out, GRPO_SERVE_PORT or 8000.")] = None,
    overrides: Overrides = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print a serve.yaml with every setting, its meaning and its default.")
    ] = False,
) -> None:
    """Serve a model by OpenAI's chat API on this machine, and log each conversation for retraining.

    Use it when users or your own program should talk to a trained model. The settings are in a YAML file, and --set
    changes single ones. Requests need a key: grpo keys create NAME --scope chat. When another version is promoted, it
    is loaded while the old one still answers, and then gets the new conversations. When SIGTERM arrives, running turns
    may end first. If GRPO_SERVE_DATABASE names a PostgreSQL database, all servers of one log share conversations and
    limits in it.

    Example: grpo serve models:/support-desk@champion --set service.consent=training --set service.licence=own

    Example: grpo serve serve.yaml
    """
    if reference:
        from grpo.config.commented_yaml import commented_yaml

        typer.echo(commented_yaml(serve_config(source or "models:/support-desk@champion", overrides)), nl=False)
        return
    if source is None:
        raise ConfigError(
            "no model was named. Name one, e.g. models:/support-desk@champion, or a YAML file of settings"
        )
    home = start_command()
    config = serve_config(source, overrides, host=host, port=port)
    log_to_stderr()
    from grpo.policy.catalog import is_weights
    from grpo.policy.weights.registered import tracking_uri
    from grpo.serving.access.guard import Authenticator
    from grpo.serving.access.jwt_tokens import make_token_verifier
    from grpo.serving.access.keys import KeyStore
    from grpo.serving.engine.engine import start_forkserver
    from grpo.serving.engine.registered import WatchedVersion, fixed_model
    from grpo.serving.server import NextVersion, ServerPlaces, run_server
    from grpo.serving.shared.database import VARIABLE
    from grpo_local.training_jobs import PrefectJobs
    from grpo_tasks.registry import registry

    tokens = None if config.jwt is None else make_token_verifier(config.jwt)
    store = KeyStore(Path(config.keys) if config.keys else home / "keys.json")
    if not store.list() and tokens is None:
        raise ConfigError("there are no API keys: make one with grpo keys create NAME --scope chat --scope feedback")
    if is_weights(config.model):
        start_forkserver()
    if config.model.startswith(_REGISTERED):
        with settings.without_gc():
            models = registry()
        models.resolve(config.model, follow_alias=config.follow_alias)
        versions: NextVersion = WatchedVersion(models, config.model, follow_alias=config.follow_alias)
    else:
        versions = fixed_model(config.model, Path(config.model).name)
    places = ServerPlaces(
        log=Path(config.log) if config.log else home / "served",
        budgets=home / "budgets.db",
        reports=home,
        database=os.environ.get(VARIABLE) or None,
        tracking_uri=tracking_uri() if config.mirror else "",
    )
    scheme = "https" if config.tls else "http"
    console.print(f"{scheme}://{config.host}:{config.port}/v1   {config.model}   log {places.log}")
    if config.service.not_trained_on:
        console.print(config.service.not_trained_on, soft_wrap=True)
    _run(lambda: run_server(config, places, versions, Authenticator(store, tokens), PrefectJobs(home)))


def serve_config(
    source: str, overrides: Sequence[str] | None, *, host: str | None = None, port: int | None = None
) -> ServeConfig:
    """Settings of a server: a YAML file of them, or the address of a model, with overrides. Raises `ConfigError`.

    If nothing sets the port, the environment variable GRPO_SERVE_PORT does.
    """
    from grpo.config.loading import apply_overrides, load_settings
    from grpo.config.serving import ServeConfig

    addresses = {"host": host, "port": port}
    changes = (*(overrides or ()), *(f"{name}={value}" for name, value in addresses.items() if value is not None))
    if source.endswith(_YAML):
        config = load_settings(source, ServeConfig, changes)
    else:
        config = apply_overrides(ServeConfig(model=source), changes)
    variable = os.environ.get(_PORT)
    if variable and "port" not in config.model_fields_set:
        return apply_overrides(config, (f"port={variable}",))
    return config


def _run(start: Callable[[], None]) -> None:
    """Run the server. If a library raises while the first version loads, this project's error for it is raised."""
    from grpo.serving.engine.served_model import FirstVersionError

    try:
        start()
    except FirstVersionError as error:
        known = known_failure(error.__cause__) if isinstance(error.__cause__, Exception) else None
        raise known or error from error
