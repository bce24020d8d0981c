"""Name under which the package is installed. The package index has a stranger's project under the name `grpo`."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from importlib.resources import files

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import grpo
from grpo.errors import DISTRIBUTION, install_command
from tests.places import ROOT

_STRANGER = re.compile(
    r"""\bgrpo\\?\[[a-z{$]                                             # grpo[s3]: an extra
    | \b(?:install|download|add|wheel|uninstall)\b(?:[ ]+-\S+)*[ ]+['"]?grpo(?![-\w/.*])  # pip install grpo
    | \b(?:version|metadata|requires|distribution|files)\(['"]grpo['"]\)  # importlib.metadata.version("grpo")
    """,
    re.VERBOSE,
)
"""Places that take `grpo` for a distribution."""


def _texts() -> dict[str, str]:
    """Texts of the files of the repository, this one and pictures left out."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    texts = {}
    for name in filter(None, listed):
        path = ROOT / name
        if path.is_file() and name != "tests/test_distribution.py" and b"\0" not in (data := path.read_bytes()):
            texts[name] = data.decode("utf-8")
    return texts


@pytest.mark.parametrize(
    ("text", "stranger"),
    [
        ("pip install 'grpo[s3]'", True),
        (r"pip install 'grpo\[s3\]'", True),
        ("pip install grpo", True),
        ('RUN pip install --no-cache-dir "grpo==0.1.0"', True),
        ("uv add grpo", True),
        ('importlib.metadata.version("grpo")', True),
        ("version('grpo')", True),
        ("reinstall 'grpo[{extra}]'", True),
        ("pip install 'grpo-agent-framework[s3]'", False),
        ("pip install dist/grpo_agent_framework-0.1.0-py3-none-any.whl", False),
        ("pip install -e '.[s3]'", False),
        ("from grpo import train", False),
        ("grpo train grpo.yaml", False),
    ],
)
def test_a_place_that_takes_the_import_name_for_a_distribution_is_recognized(text: str, stranger: bool):
    """Extras, install lines and look-ups of metadata; the import name and the command are not."""
    assert bool(_STRANGER.search(text)) is stranger


def test_no_file_installs_the_stranger():
    """Neither code, tests, pages, manifests nor the image."""
    texts = _texts()
    assert {"README.md", "deployments/Dockerfile", "docs/own.md", "pyproject.toml"} <= set(texts)
    places = [
        f"{name}: {line.strip()}"
        for name, text in texts.items()
        for line in text.splitlines()
        if _STRANGER.search(line)
    ]
    assert places == []


def test_no_requirement_is_the_stranger():
    """Dependencies, extras, constraints and the files of requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    for name, text in _texts().items():
        if re.search(r"(constraints|requirements)[^/]*\.txt$", name):
            lines += [line.split(" #")[0] for line in text.splitlines() if line and not line.startswith(("#", "-"))]
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    assert "torch" in names
    assert names.isdisjoint({"grpo", DISTRIBUTION})


def test_the_distribution_has_the_name_that_messages_install():
    """Its metadata is that of this package: the version, the command, the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    installed = importlib.metadata.distribution(DISTRIBUTION)
    assert installed.version == grpo.__version__ == project["version"]
    assert [point.name for point in installed.entry_points.select(group="console_scripts")] == ["grpo"]
    assert set(installed.metadata.get_all("Provides-Extra") or []) == set(project["optional-dependencies"])
    assert install_command("s3") == "pip install 'grpo-agent-framework[s3]'"


def test_every_extra_that_a_page_names_exists():
    """`pip install 'grpo-agent-framework[postgres]'` and `-e '.[s3]'`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = set()
    for name, text in _texts().items():
        if name.endswith(".md"):
            for extras in re.findall(rf"(?:{DISTRIBUTION}|-e '\.|\.whl)\[([a-z0-9,-]+)\]", text):
                named |= set(extras.split(","))
    assert {"postgres", "s3", "vllm"} <= named
    assert named <= set(project["optional-dependencies"])


def test_the_packages_are_typed():
    """A type checker of a project that uses them reads their annotations (PEP 561)."""
    for package in ("grpo", "grpo_cli", "grpo_flows", "grpo_local", "grpo_tasks"):
        assert (files(package) / "py.typed").is_file()
