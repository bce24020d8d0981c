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
    source: Annotated[str, typer.Argument(metavar="FROM", help="The `store` of the configs so far.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="A folder or an address such as s3://BUCKET/artifacts.")],
    keep: Annotated[bool, typer.Option("--keep", help="Leave the old store as it is.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare the digests, and say what is to do.")] = False,
) -> None:
    """Move all artifacts and results into another store, compared by their digests; nothing is computed twice.

    Versions that were registered from the old store are found in the new one, by this home. On another machine of a
    team the same command with --keep, once the new store is there, copies what is missing and lets its home find them.
    Interrupted, it is called again. End the runs of the old store first.

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
def sign(address: Annotated[str, typer.Argument(metavar="STORE", help="The `store` of the configs.")]) -> None:
    """Sign the results and records that an earlier version wrote into a store, if their digests hold.

    Whoever could write to the store could have written them: sign a store whose writers you trust. `grpo migrate` does
    so for the store of this home.

    Example: grpo store sign s3://BUCKET/artifacts
    """
    start_command()
    from grpo.store_move import sign_store

    console.print(f"{sign_store(address)} documents of {address} are signed now", soft_wrap=True)
