"""`grpo databases`."""

from __future__ import annotations

from flows import settings
from flows.commands.exits import exits


def databases() -> None:
    """Create the databases in which runs keep their records, or bring them up to date.

    Example: grpo databases
    """
    home = settings.apply()
    from flows.stack.servers import create_databases

    with exits():
        create_databases(home)
