"""The begin of a command: the environment is applied, and what it names is looked at before anything starts."""

from __future__ import annotations

from pathlib import Path

from flows.local import settings


def begin(*, services: bool = True) -> Path:
    """Put the settings into the environment; returns the home.

    Raises what `grpo doctor` shows as a problem of the home and, for a command that needs `services`, of ports,
    databases and the servers that the environment names: `ConfigError`, `StorageError`, `ConnectionError`.
    """
    home = settings.apply()
    from flows.doctor.servers import named_servers, ports
    from flows.doctor.stores import folder, records
    from flows.local.checks import require

    require([folder(home)] if not services else [*ports(), *records(home)])
    if services:
        require(named_servers())
    return home
