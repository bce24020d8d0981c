"""`grpo env`."""

from __future__ import annotations

import shlex

import typer

from flows.local import settings
from grpo.errors import ConfigError


def env() -> None:
    """Print the address and the login of this home's Prefect server, for Prefect's own commands.

    A shell takes them over with eval "$(grpo env)"; they belong to the server that `grpo up`, `grpo ui` or a run of
    this home has started.

    Example: grpo env
    """
    home = settings.apply()
    from flows.local.login import CLIENT, login
    from flows.local.servers import prefect_service

    url = prefect_service(home).address()
    if url is None:
        raise ConfigError(f"no Prefect server of {home} is running; start it with grpo up")
    for name, value in (("PREFECT_API_URL", url), (CLIENT, login(home))):
        typer.echo(f"export {name}={shlex.quote(value)}")
