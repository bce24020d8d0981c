"""Commands for the API keys of the server: create, list, revoke."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_cli.command import console, start_command
from grpo_cli.console import PlainConsole
from grpo_cli.errors import with_exit_codes

if TYPE_CHECKING:
    from grpo.config.serving import CallerLimits
    from grpo.serving.access.keys import KeyStore

keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

KeyName = Annotated[str, typer.Argument(help="Name of the key: 1 to 64 letters, digits, `.`, `_` and `-`.")]
KeyFile = Annotated[Path | None, typer.Option("--file", help="File of the keys. If left out, keys.json in GRPO_HOME.")]


@keys.callback()
def manage() -> None:
    """Create, list and revoke the API keys of `grpo serve`. A running server follows without a restart.

    Example: grpo keys create shop --scope chat --requests-per-minute 60

    Example: grpo keys list

    Example: grpo keys revoke shop
    """


@keys.command()
@with_exit_codes
def create(
    name: KeyName,
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope", help="What the key may do: chat, feedback, outcomes, log, metrics, rollout or admin. Repeatable."
        ),
    ],
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Most requests in any 60 seconds.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Most tokens in any 60 seconds.")] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Most requests that run at the same time.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(min=1, help="Most tokens per day (UTC).")] = None,
    tokens_per_month: Annotated[int | None, typer.Option(min=1, help="Most tokens per month (UTC).")] = None,
    file: KeyFile = None,
) -> None:
    """Create a key and print it. It is shown only now, because the file keeps only its hash.

    Example: grpo keys create shop --scope chat --scope feedback --requests-per-minute 60
    """
    store = _store(file)
    from grpo.config.serving import CallerLimits

    limits = CallerLimits(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        parallel=parallel,
        tokens_per_day=tokens_per_day,
        tokens_per_month=tokens_per_month,
    )
    secret = store.create(name, scope, limits)
    PlainConsole(stderr=True).print(f"key {name}, shown once. Send it as `Authorization: Bearer KEY`:", soft_wrap=True)
    typer.echo(secret)


@keys.command("list")
@with_exit_codes
def list_keys(file: KeyFile = None) -> None:
    """List the keys with their scopes, limits and the start of their hashes, which the log has instead of the keys.

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
        console.print(
            "the server refuses every request, because the file has no key: call grpo keys create NAME --scope chat"
        )


@keys.command()
@with_exit_codes
def revoke(name: KeyName, file: KeyFile = None) -> None:
    """Remove a key. A running server refuses it when its next request arrives.

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
