"""Configs, scenarios, models, rubrics and networks that ship."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from flows.local.checks import CheckResult
from flows.shipped import PARTS


def shipped(parts: Mapping[str, Path] = PARTS) -> Iterator[CheckResult]:
    """The files that the shipped configs and rewards read."""
    for name, path in parts.items():
        here = path.exists()
        yield CheckResult(
            area="shipped files",
            name=name,
            state="ok" if here else "problem",
            found=str(path) if here else f"{path} is not there",
            remedy="" if here else "install from a clone of the repository: pip install -e .",
        )
