"""`grpo databases`."""

from __future__ import annotations

from flows.commands.begin import begin


def databases() -> None:
    """Create the databases in which runs keep their records, or bring them up to date.

    Example: grpo databases
    """
    home = begin(services=False)
    from flows.stack.servers import create_databases

    create_databases(home)
