"""Everything that is looked at, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from flows.doctor.capabilities import capabilities
from flows.doctor.finding import Diagnosis, Finding
from flows.doctor.installation import extras, packages, python
from flows.doctor.machine import accelerator, disk, memory
from flows.doctor.servers import servers
from flows.doctor.stores import stores


def examine(home: Path, store: str) -> Diagnosis:
    """Look at everything; nothing is left behind, and no password is told."""
    areas: tuple[Callable[[], Iterator[Finding]], ...] = (
        python,
        packages,
        extras,
        accelerator,
        memory,
        lambda: disk(home, store),
        lambda: stores(home, store),
        lambda: servers(home),
        capabilities,
    )
    return Diagnosis(findings=tuple(finding for area in areas for finding in area()))
