"""`grpo serve`: serve a model by OpenAI's chat API, and log its conversations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from grpo_local import settings
from grpo_local.serving import Served
from typer.main import get_command

from grpo.errors import ConfigError
from grpo.storage.error_lines import log_to_stderr
from grpo_cli.command import console, start_command
from grpo_cli.errors import known_failure

_REGISTERED = "models:/"


def serve(
    model: Annotated[
        str,
        typer.Argument(help="models:/NAME@champion, or a model folder, org/name, file.gguf."),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, envvar="GRPO_SERVE_PORT", help="Port to listen on.")] = 8000,
    follow_alias: Annotated[
        bool,
        typer.Option(
            "--follow-alias", help="Serve the version that the alias champion names, also if it was moved by hand."
        ),
    ] = False,
    keys: Annotated[Path | None, typer.Option(help="File of the API keys; keys.json in GRPO_HOME by default.")] = None,
    log: Annotated[
        Path | None, typer.Option(help="Folder of the conversations; served in GRPO_HOME by default.")
    ] = None,
    consent: Annotated[
        str, typer.Option(help="Uses that users have agreed to, logged with each turn, such as training.")
    ] = "",
    licence: Annotated[str, typer.Option(help="Licence of the conversations, logged with each turn.")] = "",
    retention_days: Annotated[int | None, typer.Option(min=1, help="Days after which turns are erased.")] = None,
    mirror_experiment: Annotated[
        str | None, typer.Option(help="MLflow experiment that shows the conversations, with personal data redacted.")
    ] = None,
    mirror_outcomes: Annotated[
        bool, typer.Option("--mirror-outcomes", help="Read success from MLflow's page, too: it decides rewards.")
    ] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Turns that are generated at once.")] = 64,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the model on the CPU; all cores but one by default.")
    ] = None,
    stream_interval_s: Annotated[
        float, typer.Option(min=0, help="Seconds between two events of a streamed reply at least.")
    ] = 0.04,
    max_requests: Annotated[int, typer.Option(min=1, help="Turns in progress and waiting; more get 503.")] = 256,
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds that running turns have to end on SIGTERM.")] = 60.0,
    body_bytes: Annotated[int, typer.Option(min=1024, help="Bytes of a request's body at most.")] = 4 * 2**20,
    frame_bytes: Annotated[int, typer.Option(min=1024, help="Bytes of a WebSocket's message at most.")] = 4 * 2**20,
    refused_bytes: Annotated[
        int, typer.Option(min=65536, help="Bytes of refused requests of one key in a minute; more get 429.")
    ] = 16 * 2**20,
    connections: Annotated[
        int | None, typer.Option(min=16, help="Connections at most; by default what open files allow, up to 8192.")
    ] = None,
    connections_per_address: Annotated[
        int | None, typer.Option(min=8, help="Connections of one address at most; half of all by default.")
    ] = None,
    jwt_issuer: Annotated[
        str | None, typer.Option(help="Issuer of JSON Web Tokens, which are then accepted as well as keys; claim iss.")
    ] = None,
    jwt_audience: Annotated[str | None, typer.Option(help="Audience of the tokens; claim aud.")] = None,
    jwt_algorithm: Annotated[
        list[str] | None, typer.Option(help="Algorithm of the tokens, such as RS256; may be repeated.")
    ] = None,
    jwt_key_file: Annotated[Path | None, typer.Option(help="Public key, PEM, or shared secret of the tokens.")] = None,
    jwt_key_variable: Annotated[str | None, typer.Option(help="Environment variable with that key.")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="TLS certificate, PEM; with --tls-key.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate, PEM.")] = None,
) -> None:
    """Serve a model by OpenAI's chat API on this machine, and log each conversation for retraining.

    Requests need a key: grpo keys create NAME --scope chat. When another version is promoted, it is loaded beside the
    old one and answers new conversations. SIGTERM lets running turns end. Servers of one log share
    conversations and limits in the PostgreSQL database that GRPO_SERVE_DATABASE names.

    Example: grpo serve models:/support-desk@champion --consent training
    """
    home = start_command()
    _check_tls(tls_certificate, tls_key)
    log_to_stderr()
    from grpo_local.training_jobs import PrefectJobs

    from grpo.policy.catalog import is_weights
    from grpo.policy.weights.registered import tracking_uri
    from grpo.serving.access.guard import Authenticator
    from grpo.serving.access.jwt_tokens import token_verifier
    from grpo.serving.access.keys import KeyStore
    from grpo.serving.engine.engine import start_forkserver
    from grpo.serving.engine.registered import WatchedVersion, fixed_model
    from grpo.serving.engine.versions import EngineSettings
    from grpo.serving.mirror.mirror import MirrorSettings
    from grpo.serving.requests.settings import ServiceSettings
    from grpo.serving.server import NextVersion, ServerSettings, run_server
    from grpo.serving.shared.database import VARIABLE
    from grpo_tasks.registry import registry

    tokens = token_verifier(
        issuer=jwt_issuer,
        audience=jwt_audience,
        algorithms=jwt_algorithm or (),
        variable=jwt_key_variable,
        file=jwt_key_file,
    )
    store = KeyStore(keys or home / "keys.json")
    if not store.list() and tokens is None:
        raise ConfigError("there are no API keys: make one with grpo keys create NAME --scope chat --scope feedback")
    if is_weights(model):
        start_forkserver()
    if model.startswith(_REGISTERED):
        with settings.without_gc():
            models = registry()
        models.resolve(model, follow_alias=follow_alias)
        source: NextVersion = WatchedVersion(models, model, follow_alias=follow_alias)
    else:
        source = fixed_model(model, Path(model).name)
    if mirror_outcomes and mirror_experiment is None:
        raise ConfigError("--mirror-outcomes needs --mirror-experiment, the experiment that it reads them from")
    mirror = None
    if mirror_experiment:
        mirror = MirrorSettings(tracking_uri=tracking_uri(), experiment=mirror_experiment, outcomes=mirror_outcomes)
    console.print(f"http{'s' if tls_key else ''}://{host}:{port}/v1   {model}   log {log or home / 'served'}")
    server = ServerSettings(
        log=log or home / "served",
        budgets=home / "budgets.db",
        database=os.environ.get(VARIABLE) or None,
        reports=home,
        host=host,
        port=port,
        certificate=tls_certificate,
        private_key=tls_key,
        body_bytes=body_bytes,
        frame_bytes=frame_bytes,
        refused_bytes=refused_bytes,
        connections=connections,
        connections_per_address=connections_per_address,
        retention_days=retention_days,
        mirror=mirror,
        drain_s=drain_s,
        engine=EngineSettings(concurrency=concurrency, threads=threads),
        service=ServiceSettings(
            max_requests=max_requests, stream_interval_s=stream_interval_s, consent=consent, licence=licence
        ),
    )
    _run(lambda: run_server(server, source, Authenticator(store, tokens), PrefectJobs(home)))


def _run(start: Callable[[], None]) -> None:
    """Run the server. If a library raises while the first version loads, this project's error for it is raised."""
    from grpo.serving.engine.served_model import FirstVersionError

    try:
        start()
    except FirstVersionError as error:
        known = known_failure(error.__cause__) if isinstance(error.__cause__, Exception) else None
        raise known or error from error


def parse_served(model: str, options: Sequence[str]) -> Served:
    """Server of a model in the stack, with options as `grpo serve` takes them. Raises its usage errors.

    Paths become absolute, and the port of GRPO_SERVE_PORT becomes an option, because the supervisor, which starts the
    server again, may run in another folder and with other variables.
    """
    paths = {name for name, hint in get_type_hints(serve).items() if Path in (hint, *get_args(hint))}
    program = typer.Typer()
    program.command()(serve)
    command = get_command(program)
    with command.make_context("grpo serve", [_absolute(model), *options]) as context:
        values: dict[str, Any] = dict(context.params)
        given = [
            argument
            for parameter in command.params
            if (source := context.get_parameter_source(parameter.name)) is not None and source.name != "DEFAULT"
            for argument in _arguments(parameter, values[parameter.name], paths=parameter.name in paths)
        ]
    _check_tls(values["tls_certificate"], values["tls_key"])
    return Served(
        arguments=tuple(given),
        host=values["host"],
        port=values["port"],
        tls=values["tls_certificate"] is not None,
        drain_s=values["drain_s"],
    )


def _check_tls(certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        raise ConfigError("TLS needs both --tls-certificate and --tls-key")


def _arguments(parameter: Any, value: Any, *, paths: bool) -> Iterator[str]:
    """A parameter with its value, or with each of its values, as on a command line. `paths` makes them absolute."""
    if parameter.param_type_name == "argument":
        yield str(value)
        return
    for each in value if parameter.multiple else [value]:
        yield from (parameter.opts[0], str(Path(each).resolve() if paths else each))


def _absolute(model: str) -> str:
    """The model. If it is a folder or file of this machine, its absolute path."""
    return str(Path(model).resolve()) if Path(model).exists() else model
