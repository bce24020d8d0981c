"""Commands for registered models: models, admit, promote, rollback, lineage, reproduce, export."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo.errors import AddressError
from grpo_cli.command import ModelAddress, Reason, console, start_command
from grpo_cli.dry_runs import DryRunOption, print_outline, print_planned_change, scratch_services
from grpo_cli.errors import FAILED, REFUSED
from grpo_local import settings

if TYPE_CHECKING:
    from grpo.registry import ChampionChange, Registry

_CHAMPION = re.compile(r"^models:/(?P<name>\w[\w.-]*)@champion$")


def promote(
    model: Annotated[str, typer.Argument(help="models:/NAME@candidate, or models:/NAME/3.")],
    reason: Reason,
    force: Annotated[
        bool, typer.Option(help="Promote a version that would be refused. The history records that it was forced.")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Promote a version: the alias `champion` moves to it, and `previous` moves to the version that it replaces.

    Use it when you have read the report of a candidate and want to put it into service. If the version did not pass its
    gates, was compared with another champion, or was champion before, it is refused, and the exit code is 3.

    Example: grpo promote models:/support-desk@candidate --reason "read 40 conversations"
    """
    home = start_command()
    from grpo_cli.display import print_change
    from grpo_tasks.registry import existing_registry

    with settings.without_gc():
        models = _required(existing_registry())
        version = models.resolve(model)
    if dry_run:
        from grpo.policy.weights.promotion_records import Actor

        plan = models.plan_promotion(version.name, version.version, reason=reason, by=Actor.here())
        if not print_planned_change(console, version.name, plan, force=force):
            raise typer.Exit(REFUSED)
        return

    def promote_here() -> ChampionChange | None:
        from grpo.policy.weights.promotion_records import Actor

        return models.promote(version.name, version.version, reason=reason, by=Actor.here(), force=force)

    def promote_in_flow() -> ChampionChange | None:
        from grpo_flows.promote import promote as flow

        return flow(version.name, version=version.version, reason=reason, force=force)

    print_change(console, version.name, _change_champion(home, promote_here, promote_in_flow))


def admit(
    model: Annotated[str, typer.Argument(help="models:/NAME/3.")],
    reason: Reason,
    yes: Annotated[bool, typer.Option("--yes", help="Sign it without asking first.")] = False,
) -> None:
    """Sign a version that this home does not trust, because another home or MLflow's own client wrote or changed it.

    Use it when a command refuses a version because it is not signed here, and you trust its author. The command
    verifies the files, prints where the weights are and which code the version imports, and asks before it signs. The
    verdict of the version becomes `admitted`, so that grpo promote needs --force.

    Example: grpo admit models:/support-desk/3 --reason "trained by the other team"
    """
    start_command()
    from grpo.policy.weights.promotion_records import Actor
    from grpo.registry.admission import admit as sign
    from grpo.registry.admission import examined
    from grpo_cli.display import print_facts
    from grpo_tasks.registry import existing_registry

    with settings.without_gc():
        models = _required(existing_registry())
    with examined(models, model) as admission:
        print_facts(console, model, admission.facts)
        if not yes and not typer.confirm("Sign this version, so that all commands of this home trust it?"):
            raise typer.Exit(REFUSED)
        version = sign(models, admission, reason=reason, by=Actor.here())
    command = f"grpo promote {version.address} --reason WHY --force"
    console.print(f"{version.address} is signed. To put it into service: {command}", soft_wrap=True)


def rollback(
    model: Annotated[str, typer.Argument(help="models:/NAME@champion.")],
    reason: Reason,
    follow_alias: Annotated[
        bool,
        typer.Option(
            "--follow-alias",
            help="Go back from the version that MLflow's alias champion names, even if the alias was moved by hand.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Roll back to the version that the champion has replaced.

    Use it when the champion does harm in service. A running server switches to the earlier version by itself.

    Example: grpo rollback models:/support-desk@champion --reason "refunds twice"
    """
    if (address := _CHAMPION.match(model)) is None:
        raise AddressError(
            f"{model!r} is not the address of a champion, which a rollback replaces. Write models:/NAME@champion"
        )
    home, name = start_command(), address["name"]
    from grpo_cli.display import print_change
    from grpo_tasks.registry import existing_registry

    if dry_run:
        from grpo.policy.weights.promotion_records import Actor

        with settings.without_gc():
            models = _required(existing_registry())
        plan = models.plan_rollback(name, reason=reason, by=Actor.here(), follow_alias=follow_alias)
        print_planned_change(console, name, plan)
        return

    def roll_back_here() -> ChampionChange:
        from grpo.policy.weights.promotion_records import Actor

        with settings.without_gc():
            models = _required(existing_registry())
        return models.rollback(name, reason=reason, by=Actor.here(), follow_alias=follow_alias)

    def roll_back_in_flow() -> ChampionChange:
        from grpo_flows.rollback import rollback as flow

        return flow(name, reason=reason, follow_alias=follow_alias)

    print_change(console, name, _change_champion(home, roll_back_here, roll_back_in_flow))


def _change_champion(
    home: Path, here: Callable[[], ChampionChange | None], in_flow: Callable[[], ChampionChange | None]
) -> ChampionChange | None:
    """Change the champion by a flow run if a Prefect server runs, and otherwise in this process.

    The registry's own lock and history hold in both cases. A server is not started for one write, because that takes
    ten seconds.
    """
    from grpo_local.servers import prefect_server, running_prefect_server

    if running_prefect_server(home) is None:
        return here()
    with prefect_server(home):
        from grpo_cli.console import show_progress

        settings.import_packages("grpo_flows.promote", "grpo_flows.rollback")  # the handlers that show_progress filters
        with show_progress(console):
            return in_flow()


def lineage(
    model: ModelAddress,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document with the whole config.")] = False,
) -> None:
    """Print the provenance of a version, its ancestors, and every promotion and rollback.

    Use it when you need to know what a version was trained on, by which code, and who put it into service.

    Example: grpo lineage models:/support-desk@champion
    """
    start_command()
    from grpo.registry.lineage import trace_lineage
    from grpo_cli.display import print_lineage
    from grpo_tasks.registry import registry

    models = registry()
    with settings.without_gc():
        version = models.resolve(model)
    document = trace_lineage(models, version)
    if as_json:
        typer.echo(document.model_dump_json(indent=1))
    else:
        print_lineage(console, document)


def reproduce(model: ModelAddress, dry_run: DryRunOption = False) -> None:
    """Train a version again from its recorded config, and compare the weights.

    Use it when you must show where weights come from. The exit code is 0 if they are equal bit for bit, as they are on
    the CPU, and otherwise 1 with the differences.

    Example: grpo reproduce models:/support-desk@champion
    """
    home = start_command()
    if dry_run:
        from grpo_tasks.registry import existing_registry

        _required(existing_registry())
        with scratch_services():
            from grpo_flows.plans.reproduce import plan_reproduction

            print_outline(console, plan_reproduction(model))
        return
    from grpo_local.servers import prefect_server

    with prefect_server(home):
        from grpo_cli.console import show_progress
        from grpo_cli.display import print_reproduction
        from grpo_flows.reproduce import reproduce as flow

        with show_progress(console):
            result = flow(model)
        print_reproduction(console, result)
    if not result.equal:
        raise typer.Exit(FAILED)


def models(
    name: Annotated[str | None, typer.Argument(help="Name of a registered model. If left out, all are listed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List registered models and their versions, the newest first.

    Each has its address, aliases, held-out success with its interval, verdict, date and run. Use it when you look for
    the address of a version.

    Example: grpo models support-desk
    """
    start_command()
    from grpo.registry.versions import list_versions
    from grpo_cli.display import print_versions
    from grpo_tasks.registry import existing_registry

    with settings.without_gc():
        registered = existing_registry()
    versions = [] if registered is None and name is None else list_versions(_required(registered), name)
    if as_json:
        typer.echo(json.dumps([version.model_dump(mode="json") for version in versions], indent=1))
    elif versions:
        print_versions(console, versions)
    elif name is not None:
        console.print(f"model {name} has no version. `grpo lineage {name}` shows what it had", soft_wrap=True)
    else:
        console.print("no model is registered. A run registers one when it ends: grpo train CONFIG", soft_wrap=True)


def _required(registered: Registry | None) -> Registry:
    """The registry of this process. Raises `AddressError` if nothing was ever written to it."""
    if registered is None:
        raise AddressError("no model is registered here. A run registers one when it ends: grpo train CONFIG")
    return registered


def export(
    model: ModelAddress,
    folder: Annotated[Path, typer.Argument(help="Folder to make.")],
    adapters: Annotated[
        bool,
        typer.Option(
            "--adapters", help="Write the adapters and the base model to separate files, instead of merging them."
        ),
    ] = False,
) -> None:
    """Export a version as a plain Hugging Face folder: weights with adapters merged, chat template, model card.

    Use it when another program should load the model. The command that serves the folder with vLLM is printed and is in
    its README.md.

    Example: grpo export models:/support-desk@champion champion
    """
    start_command()
    from grpo.registry.export import export as write
    from grpo_tasks.registry import registry

    with settings.without_gc():
        models = registry()
    exported = write(models, model, folder, adapters=adapters)
    console.print(f"{exported.lineage.name} version {exported.lineage.version}: {folder}", soft_wrap=True)
    console.print(exported.command, soft_wrap=True)
