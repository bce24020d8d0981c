"""Commands for the artifact store and the registry: move them, sign what an earlier version left unsigned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_cli.command import console, start_command
from grpo_cli.errors import with_exit_codes

if TYPE_CHECKING:
    from grpo.registry.move import RegistryMove
    from grpo.store_move import StoreMove

store = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
registry = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@store.callback()
def manage() -> None:
    """Move the artifact store of this home to another address, or sign what an earlier version left unsigned.

    Example: grpo store move runs/artifacts s3://BUCKET/artifacts

    Example: grpo store sign s3://BUCKET/artifacts
    """


@store.command()
@with_exit_codes
def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Store that the configs name until now.")],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="New store: a folder, or an address such as s3://BUCKET/artifacts.")
    ],
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the old store, instead of removing what was moved.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compare the digests, show what would be moved, and change nothing.")
    ] = False,
) -> None:
    """Move all artifacts and results into another store, and compare their digests there. Nothing is computed twice.

    Use it when the store becomes too large for its disk, or when several machines should share it. End the runs of the
    old store first. Registered versions whose files were in the old store are then read from the new one. The other
    machines of a team have to learn this as well: call the same command with --keep on each of them, which copies only
    what is missing. If it is interrupted, call it again.

    Example: grpo store move runs/artifacts s3://BUCKET/artifacts

    Example: grpo store move runs/artifacts /mnt/shared/artifacts --keep
    """
    start_command()
    from grpo.store_move import move_store
    from grpo_cli.console import show_progress

    with show_progress(console):
        moved = move_store(source, target, keep=keep, dry_run=dry_run)
    _print_store_move(moved, dry_run=dry_run)


@store.command()
@with_exit_codes
def sign(address: Annotated[str, typer.Argument(metavar="STORE", help="Store that the configs name.")]) -> None:
    """Sign the results and records that an earlier version wrote into a store, if their digests match.

    Use it when a command refuses documents that an earlier version wrote. Whoever could write to the store could have
    written them, so sign it only if you trust its writers. `grpo migrate` does so for the store of this home.

    Example: grpo store sign s3://BUCKET/artifacts
    """
    start_command()
    from grpo.store_move import sign_store

    console.print(f"{sign_store(address)} documents of {address} are signed now", soft_wrap=True)


@registry.callback()
def manage_registry() -> None:
    """Move the registry of this home, with its versions and promotions, into a PostgreSQL database.

    Example: grpo registry move s3://BUCKET/mlflow
    """


@registry.command("move")
@with_exit_codes
def move_models(
    files: Annotated[
        str, typer.Argument(metavar="FILES", help="New place of MLflow's files: s3://BUCKET/mlflow, or a folder.")
    ],
) -> None:
    """Copy the registry of this home into the database of MLFLOW_TRACKING_URI, and its files to another place.

    Use it when several machines should share the registry. Call grpo down first. Versions, promotions and their
    signatures are compared, and this home then refuses to open the old registry, which stays as a copy. If it is
    interrupted, call it again.

    Example: grpo registry move s3://BUCKET/mlflow
    """
    home = start_command(services=False)
    from grpo.registry.move import move_registry
    from grpo_cli.console import show_progress
    from grpo_local.moving import require_stopped

    require_stopped(home)
    with show_progress(console):
        moved = move_registry(os.environ["MLFLOW_TRACKING_URI"], files)
    _print_registry_move(moved, key=home / "services" / "signing.key")


def _print_store_move(moved: StoreMove, *, dry_run: bool) -> None:
    """Print the artifacts that were moved, the ones that stay, and the next steps."""
    verb = "would move" if dry_run else "moved"
    console.print(
        f"{verb} {moved.artifacts} artifacts and {moved.documents} documents from {moved.source} to {moved.target}. "
        f"{moved.present} artifacts were there already",
        soft_wrap=True,
    )
    for reason, names in (("does not match its digest", moved.damaged), ("is not a file of a store", moved.left)):
        for name in names:
            console.print(f"{name} stays in the old store, because it {reason}", soft_wrap=True)
    if not dry_run:
        console.print(f"now set `store: {moved.target}` in the configs", soft_wrap=True)


def _print_registry_move(moved: RegistryMove, *, key: Path) -> None:
    """Print what was moved, the versions that are not trusted, and the next steps."""
    console.print(
        f"copied {moved.rows} rows from {moved.source} to {moved.target}, and {moved.written} files to {moved.files}. "
        f"{moved.present} files were there already. {moved.versions} versions are signed",
        soft_wrap=True,
    )
    for model, champion in moved.champions.items():
        console.print(f"champion of {model}: {'none' if champion is None else f'version {champion}'}", soft_wrap=True)
    for what, names in (
        ("is not signed, and was not signed before the move", moved.unsigned),
        ("stays where it is, because it is not in this home", moved.elsewhere),
    ):
        for name in names:
            console.print(f"{name} {what}", soft_wrap=True)
    console.print(
        f"now start MLflow's server with MLFLOW_BACKEND_STORE_URI={moved.target} and "
        f"MLFLOW_ARTIFACTS_DESTINATION={moved.files}, and set GRPO_SIGNING_KEY to the content of {key} on each machine",
        soft_wrap=True,
    )
