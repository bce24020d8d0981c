"""`grpo databases`."""

from __future__ import annotations

from flows.commands.begin import begin


def databases() -> None:
    """Create the databases in which runs keep their records, or bring them up to date.

    Example: grpo databases
    """
    home = begin(services=False)
    from flows.local.servers import migrate_databases

    migrate_databases(home)
