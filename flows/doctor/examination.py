"""Everything that is looked at, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from flows.doctor.capabilities import capabilities
from flows.doctor.installation import extras, packages, python
from flows.doctor.machine import accelerator, disk, memory
from flows.doctor.servers import servers
from flows.doctor.shipped import shipped
from flows.doctor.stores import stores
from flows.local.checks import CheckResult, DoctorReport
from grpo.config.pipeline import PipelineConfig
from grpo.errors import GRPOError


def needs(config: PipelineConfig | None) -> Iterator[CheckResult]:
    """First fault that a run of this config would be refused for."""
    if config is None:
        return
    from flows.cli.preflight import preflight

    try:
        preflight(config)
    except (GRPOError, ConnectionError, TimeoutError) as error:
        found, _, remedy = str(error).partition("; ")
        yield CheckResult(area="config", name=config.name, state="problem", found=found, remedy=remedy)
    else:
        yield CheckResult(area="config", name=config.name, state="ok", found="nothing that a run would refuse")


def examine(home: Path, store: str, config: PipelineConfig | None = None) -> DoctorReport:
    """Look at everything, and at what a config needs; nothing is left behind, and no password is shown."""
    areas: tuple[Callable[[], Iterator[CheckResult]], ...] = (
        python,
        packages,
        extras,
        accelerator,
        memory,
        lambda: disk(home, store),
        lambda: stores(home, store),
        lambda: servers(home),
        capabilities,
        shipped,
        lambda: needs(config),
    )
    return DoctorReport(findings=tuple(finding for area in areas for finding in area()))
