"""Commands for the API keys of the server: create, list, revoke."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_cli.command import console, start_command
from grpo_cli.console import PlainConsole
from grpo_cli.errors import with_exit_codes

if TYPE_CHECKING:
    from grpo.serving.access.callers import CallerLimits
    from grpo.serving.access.keys import KeyStore

keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

KeyName = Annotated[str, typer.Argument(help="Name of the key: 1 to 64 letters, digits, `.`, `_` and `-`.")]
KeyFile = Annotated[Path | None, typer.Option("--file", help="File of the keys; keys.json in GRPO_HOME by default.")]


@keys.callback()
def manage() -> None:
    """Create, list and revoke the API keys of the server; a running server follows without a restart.

    Example: grpo keys create shop --scope chat --requests-per-minute 60

    Example: grpo keys list

    Example: grpo keys revoke shop
    """


@keys.command()
@with_exit_codes
def create(
    name: KeyName,
    scope: Annotated[list[str], typer.Option("--scope", help="chat, feedback, outcomes, metrics, admin; repeatable.")],
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Requests in any 60 seconds.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Tokens in any 60 seconds.")] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Requests that run at once.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(min=1, help="Token budget of a day, UTC.")] = None,
    tokens_per_month: Annotated[int | None, typer.Option(min=1, help="Token budget of a month, UTC.")] = None,
    file: KeyFile = None,
) -> None:
    """Create a key and print it, once; the file keeps only its hash.

    Example: grpo keys create shop --scope chat --scope feedback --requests-per-minute 60
    """
    store = _store(file)
    from grpo.serving.access.callers import CallerLimits

    limits = CallerLimits(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        parallel=parallel,
        tokens_per_day=tokens_per_day,
        tokens_per_month=tokens_per_month,
    )
    secret = store.create(name, scope, limits)
    PlainConsole(stderr=True).print(f"key {name}, shown once; send it as `Authorization: Bearer KEY`:", soft_wrap=True)
    typer.echo(secret)


@keys.command("list")
@with_exit_codes
def list_keys(file: KeyFile = None) -> None:
    """List the keys with their scopes, limits and the begin of their hashes, which the log has; never the keys.

    Example: grpo keys list
    """
    registered = _store(file).list()
    for key in registered:
        facts = (
            f"scopes {', '.join(sorted(key.scopes))}",
            _described(key.limits),
            f"created {key.created:%Y-%m-%d %H:%M}",
            f"sha256 {key.sha256[:12]}",
        )
        console.print(f"{key.name}: {'; '.join(facts)}", soft_wrap=True)
    if not registered:
        console.print("the file has no key, so the server refuses every request: grpo keys create NAME --scope chat")


@keys.command()
@with_exit_codes
def revoke(name: KeyName, file: KeyFile = None) -> None:
    """Remove a key; a running server refuses it from its next request on.

    Example: grpo keys revoke shop
    """
    key = _store(file).revoke(name)
    console.print(f"key {key.name} is revoked", soft_wrap=True)


def _store(file: Path | None) -> KeyStore:
    home = start_command(services=False)
    from grpo.serving.access.keys import KeyStore

    return KeyStore(file or home / "keys.json")


def _described(limits: CallerLimits) -> str:
    given = limits.model_dump(exclude_none=True)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items()) or "no limits"
