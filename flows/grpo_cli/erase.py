"""`grpo erase`: erase a user or a conversation from the serving log and from all that retraining has made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo.errors import ConfigError
from grpo_cli.command import console, start_command
from grpo_cli.console import PlainConsole
from grpo_cli.errors import FAILED

_MEMORY = (
    "memory files of agents: servers that run on this log have forgotten it within a second. If an agent wrote a file "
    "to disk before and no running server has it open, delete that file yourself"
)


def erase(
    user: Annotated[str | None, typer.Option(help="User to erase, by the name in the requests.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Conversation to erase, by its id.")] = None,
    log: Annotated[Path | None, typer.Option(help="Folder of the log. If left out, `served` in GRPO_HOME.")] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(
            help="Another artifact store, in addition to the stores of the home and of its versions. Repeatable."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON.")] = False,
) -> None:
    """Erase a user or a conversation: turns, feedback, and the copies that retraining and the mirror in MLflow made.

    Use it when a user asks for it. A running server ends the turns in progress, forgets the conversations within a
    second and continues to serve. The receipt has counts and digests but no name. If there is nothing to erase, the
    exit code is 1.

    Example: grpo erase --user ann@example.com
    """
    home = start_command(services=False)
    if (user is None) == (conversation is None):
        raise ConfigError("say what to erase: either --user NAME or --conversation ID")
    from grpo.serving.erasure import erase as erase_from_log

    folder = log or home / "served"
    receipt = erase_from_log(folder, user=user, conversation_id=conversation, home=home, stores=store or ())
    if receipt is None:
        if json:
            typer.echo('{"found": false, "message": "nothing was found"}')
        else:
            PlainConsole(stderr=True).print(f"nothing was found in {folder}, and nothing was erased", soft_wrap=True)
        raise typer.Exit(FAILED)
    if json:
        typer.echo(receipt.model_dump_json(indent=1))
        return
    console.print(
        f"erased {receipt.turns} turns and {receipt.feedback} records of feedback from {folder}", soft_wrap=True
    )
    for place, count in receipt.copies.items():
        console.print(f"erased {count} copies in {place}", soft_wrap=True)
    for version in receipt.versions:
        console.print(
            f"{version} was trained on an erased turn, so that its training cannot be repeated", soft_wrap=True
        )
    for skipped in receipt.skipped:
        console.print(
            f"{skipped} was not searched. Name it with --store, or erase on the machine that has it", soft_wrap=True
        )
    console.print(f"receipt {receipt.id}", soft_wrap=True)
    console.print(_MEMORY, soft_wrap=True)
