"""Commands for the artifact store: move it to another address, sign what an earlier version left unsigned."""

from __future__ import annotations

from typing import Annotated

import typer

from grpo_cli.command import console, start_command
from grpo_cli.errors import with_exit_codes

store = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


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
    """Move all artifacts and results into another store, where their digests are compared. Nothing is computed twice.

    Use it when the store becomes too large for its disk, or when several machines should share it.     End the runs of
    the old store first. Afterwards this home finds the versions that were registered from the old store in the new one.
    On another machine of a team, call it with --keep when the new store is there: it copies what is missing, and lets
    that machine's home find the versions. If it is interrupted, call it again.

    Example: grpo store move runs/artifacts s3://BUCKET/artifacts

    Example: grpo store move runs/artifacts /mnt/shared/artifacts --keep
    """
    start_command()
    from grpo.store_move import move_store
    from grpo_cli.console import show_progress
    from grpo_cli.display import print_store_move

    with show_progress(console):
        moved = move_store(source, target, keep=keep, dry_run=dry_run)
    print_store_move(console, moved, dry_run=dry_run)


@store.command()
@with_exit_codes
def sign(address: Annotated[str, typer.Argument(metavar="STORE", help="Store that the configs name.")]) -> None:
    """Sign the results and records that an earlier version wrote into a store, if their digests hold.

    Use it when a command refuses documents that an earlier version wrote. Whoever could write to the store could have
    written them, so sign it only if you trust its writers. `grpo migrate` does so for the store of this home.

    Example: grpo store sign s3://BUCKET/artifacts
    """
    start_command()
    from grpo.store_move import sign_store

    console.print(f"{sign_store(address)} documents of {address} are signed now", soft_wrap=True)
