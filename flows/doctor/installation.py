"""Python and the packages, against what the installed metadata asks for."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from flows.local.checks import CheckResult, State

_DEVELOPMENT = ("dev",)
"""Extras that only work on the project itself needs."""


def python() -> Iterator[CheckResult]:
    """The interpreter against what the package asks for."""
    version, wanted = platform.python_version(), importlib.metadata.metadata("grpo")["Requires-Python"]
    fits = SpecifierSet(wanted).contains(version)
    yield CheckResult(
        area="python",
        name="python",
        state="ok" if fits else "problem",
        found=version,
        remedy="" if fits else f"install Python {wanted}",
    )


def packages() -> Iterator[CheckResult]:
    """Every package that is always needed, against the bounds of the installed metadata."""
    for requirement in _requirements():
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _package(requirement, area="packages", missing="problem", extra=None)


def extras() -> Iterator[CheckResult]:
    """Packages that only some settings need."""
    names = importlib.metadata.metadata("grpo").get_all("Provides-Extra") or []
    for extra in names:
        if extra in _DEVELOPMENT:
            continue
        for requirement in _requirements():
            marker = requirement.marker
            if marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra}):
                yield _package(requirement, area="extras", missing="absent", extra=extra)


def _requirements() -> list[Requirement]:
    return [Requirement(text) for text in importlib.metadata.requires("grpo") or []]


def _package(requirement: Requirement, *, area: str, missing: State, extra: str | None) -> CheckResult:
    remedy = f"pip install 'grpo[{extra}]'" if extra else f"pip install '{requirement.name}{requirement.specifier}'"
    name = f"{requirement.name} ({extra})" if extra else requirement.name
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return CheckResult(area=area, name=name, state=missing, found="not installed", remedy=remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return CheckResult(area=area, name=name, state="ok", found=version)
    found = f"{version}, which is not {requirement.specifier}"
    return CheckResult(area=area, name=name, state="problem", found=found, remedy=remedy)


def installed(package: str) -> bool:
    """Whether a package is here, of whatever version."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def imported(package: str) -> object | None:
    """The module of an installed package; a missing one is told of with the packages."""
    return importlib.import_module(package) if installed(package) else None
