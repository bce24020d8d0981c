"""Releases in constraints.txt: those that the tests run with, within the ranges of pyproject.toml."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections import defaultdict

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.places import ROOT

WITHOUT = {"vllm", "verifiers"}
"""Extras that ask for older releases of packages that others use."""


def _constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def _version(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    assert specifier.operator == "=="
    return specifier.version


def test_each_dependency_has_a_release_within_its_range():
    """Also those of extras, for each platform."""
    releases = defaultdict(list)
    for constraint in _constraints():
        releases[canonicalize_name(constraint.name)].append(_version(constraint))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [entry for name, entry in project["optional-dependencies"].items() if name not in WITHOUT]
    for text in [*project["dependencies"], *(text for extra in extras for text in extra)]:
        dependency = Requirement(text)
        known = releases[canonicalize_name(dependency.name)]
        assert known, f"{dependency.name} is not in constraints.txt; call make lock"
        assert all(dependency.specifier.contains(release) for release in known), (
            f"{dependency}: {known}; call make lock"
        )


def test_the_tests_run_with_these_releases():
    """Whatever is installed of them; a local version, as in 2.13.0+cpu, is a build of the same release."""
    others = {}
    for constraint in _constraints():
        if constraint.marker is not None and not constraint.marker.evaluate():
            continue
        try:
            installed = importlib.metadata.version(constraint.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra, or of another platform
        if installed.partition("+")[0] != _version(constraint):
            others[constraint.name] = installed
    assert others == {}
