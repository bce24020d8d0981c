"""Commands for servers and workers: up, down, ui, env, deploy, migrate."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from grpo.errors import ConfigError
from grpo_cli.command import console, start_command
from grpo_cli.dry_runs import DryRunOption, print_outline, scratch_services
from grpo_cli.serve import serve_config
from grpo_local import settings
from grpo_local.login import Server

Deployments = Annotated[Path, typer.Option(help="File of the deployments.")]


def up(
    deployments: Deployments = Path("prefect.yaml"),
    serve: Annotated[
        str | None, typer.Option(help="Also serve a model: an address such as models:/NAME@champion, or a serve.yaml.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Setting of the server that --serve starts: key=value. Repeatable."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Start Prefect, MLflow and the workers on this machine, and create the deployments of prefect.yaml.

    Processes that run already are left alone. Use it when runs should be scheduled, watched in a browser or started by
    others. Then `eval "$(grpo env)"` gives
    Prefect's own commands the address and login, `prefect deployment run train/quickstart --watch` trains, and
    `grpo down` stops everything. With --serve a model is served as well, as by `grpo serve`, and started again if it
    dies. Its port is GRPO_SERVE_PORT, or 8000 if that is not set.

    Example: grpo up

    Example: grpo up --serve models:/support-desk@champion --set service.consent=training --set service.licence=own
    """
    home = start_command()
    if overrides and serve is None:
        raise ConfigError(
            "--set changes settings of the model that --serve names. Name it with --serve, or leave --set out"
        )
    served = None if serve is None else serve_config(serve, overrides)
    if dry_run:
        with scratch_services():
            from grpo_flows.plans.deployments import plan_deployments
            from grpo_local.stack import running_services

            outline = plan_deployments(deployments, gpu_slots=None)
            services = {
                name: "runs, left alone" if runs else "started" for name, runs in running_services(home).items()
            }
            if served is not None:
                services.setdefault("serve", "started")
            print_outline(console, outline.model_copy(update={"facts": {**services, **outline.facts}}))
        return
    from grpo_local.login import password_hint
    from grpo_local.stack import up as start

    addresses = start(home, deployments, served)
    console.print(f"Prefect {addresses.prefect}   MLflow {addresses.mlflow}   logs {addresses.logs}", soft_wrap=True)
    if addresses.model is not None:
        console.print(f"Chat page {addresses.model}/   API {addresses.model}/v1", soft_wrap=True)
    if served is not None and served.service.not_trained_on:
        console.print(served.service.not_trained_on, soft_wrap=True)
    for server in _own_servers():
        console.print(password_hint(home, server), soft_wrap=True)
    if "PREFECT_API_URL" not in os.environ:
        console.print('For commands and clients of Prefect and MLflow: eval "$(grpo env)"', soft_wrap=True)


def _own_servers() -> list[Server]:
    """Servers that run in this home, and not at an address that the user has set."""
    addresses: dict[Server, str] = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
    return [server for server, name in addresses.items() if not os.environ.get(name, "").startswith("http")]


def down() -> None:
    """Stop everything that `grpo up` started. If a run was interrupted, it continues after the next `grpo up`.

    Example: grpo down
    """
    home = start_command(services=False)
    from grpo_local.stack import down as stop

    for remark in stop(home):
        console.print(remark)


def ui() -> None:
    """Serve Prefect's and MLflow's pages for the existing runs, on this machine only, until interrupted.

    Use it when you want to look at runs and none of the servers runs.

    Example: grpo ui
    """
    home = start_command()
    from grpo_local.login import password_hint
    from grpo_local.servers import mlflow_server, prefect_server

    own = _own_servers()
    try:
        with prefect_server(home, for_pages=True) as prefect_url, mlflow_server(home) as mlflow_url:
            addresses = f"Prefect {prefect_url.removesuffix('/api')}   MLflow {mlflow_url}"
            console.print(f"{addresses}   Ctrl-C stops both", soft_wrap=True)
            for server in own:
                console.print(password_hint(home, server), soft_wrap=True)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        return


def env() -> None:
    """Print addresses and logins of this home's Prefect and MLflow servers as shell exports, for their own clients.

    Use it in a shell when you call `prefect` or `mlflow` yourself: eval "$(grpo env)". The servers must be running,
    started by `grpo up`, `grpo ui` or a run of this home.

    Example: grpo env
    """
    home = settings.apply()
    from grpo_local.login import CLIENT, login, login_variables
    from grpo_local.servers import mlflow_service, prefect_service

    variables = {"PREFECT_API_URL": prefect_service(home).require_address(), CLIENT: login(home, "prefect")}
    if (tracking := mlflow_service(home).address()) is not None:
        variables |= {"MLFLOW_TRACKING_URI": tracking, **login_variables(home, "mlflow")}
    variables |= settings.exported_addresses(home, variables)
    variables |= {name: os.environ[name] for name in ("NO_PROXY", "no_proxy") if name in os.environ}
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def deploy(
    deployments: Deployments = Path("prefect.yaml"),
    gpu_slots: Annotated[
        int | None,
        typer.Option(
            envvar="GPU_SLOTS",
            min=1,
            help="Number of stages that may use a GPU at the same time: the number of GPUs of all workers together.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Setting that replaces the one in the config of each run: section.key=value. Repeatable."
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Create or update work pools, GPU slots and deployments on the server that PREFECT_API_URL names.

    Use it when the runs of a cluster should start by schedule or by a call, and again when prefect.yaml has changed.
    `grpo up` does it for the server of this machine. With --set you change a setting in the
    configs of all deployments at once, e.g. the store of a cluster and the stages that run on its GPUs.

    Example: grpo deploy --gpu-slots 4

    Example: grpo deploy --set store=s3://BUCKET/artifacts --set compute.gpu_stages={}
    """
    start_command()
    if dry_run:
        with scratch_services():
            from grpo_flows.plans.deployments import plan_deployments

            outline = plan_deployments(deployments, gpu_slots=gpu_slots, overrides=overrides or ())
            print_outline(console, outline)
        return
    from grpo_local.deployments import deploy as deploy_file

    deploy_file(deployments, gpu_slots=gpu_slots, overrides=overrides or ())
    console.print(f"{deployments} is deployed")


def migrate(
    moved: Annotated[
        bool,
        typer.Option(
            "--moved", help="Only replace the old path in the records of a home that was moved, renamed or copied."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be changed, and change nothing.")] = False,
) -> None:
    """Create the databases of Prefect and MLflow, or migrate them to the installed versions.

    Use it when another version of this package or of its servers was installed. The command also makes files of the
    home private that others can read, and signs records in the home's store that an earlier version wrote. With --moved
    it changes only the records of a home that was moved, renamed or copied, and nothing in the old place.

    Example: grpo migrate --dry-run

    Example: grpo migrate --moved
    """
    if moved and dry_run:
        raise ConfigError(
            "--dry-run shows what an upgrade would change, and --moved does not upgrade. Leave one of them out"
        )
    home = start_command(services=False)
    if moved:
        from grpo_local.moving import move_records

        changes = move_records(home)
    else:
        from grpo_local.upgrade import upgrade

        changes = upgrade(home, dry_run=dry_run)
    for change in changes:
        console.print(change, soft_wrap=True)
    if dry_run:
        console.print("nothing was changed", soft_wrap=True)
