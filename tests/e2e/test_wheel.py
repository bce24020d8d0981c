"""The wheel in an environment of its own, outside of the repository: what a newcomer does on the first afternoon."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import yaml

from grpo.evaluation.report import read_report
from tests.command_lines import shell_lines
from tests.e2e.served import own_environment
from tests.places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs folder of an environment that has the wheel, and takes all other packages from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / "bin"
    (wheel,) = folder.glob("grpo_agent_framework-*.whl")
    install = [str(programs / "pip"), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # a path: its own .pth files are not read
    return programs


def _lines_after_training(shop: Path) -> list[str]:
    """Return the commands that docs/own.md and the project's README give for a trained model, unchanged.

    Left out are the training and the tests, which ran before, and `grpo up`, which does not end. A line that both pages
    have is run once.
    """
    own, readme = ROOT / "docs" / "own.md", shop / "README.md"
    block = own.read_text(encoding="utf-8").partition("\n\n")[2].partition("\n\n")[0]
    lines = [*shell_lines(block), *shell_lines(readme.read_text(encoding="utf-8"))]
    before = ("grpo init", "python -m pytest", "grpo up")
    return [line for line in dict.fromkeys(lines) if not line.startswith(before) and line != "grpo train grpo.yaml"]


def test_a_project_of_ones_own_trains_to_a_promotion(installed: Path, server: str, tmp_path: Path):
    """`grpo init shop`, its tests and its run, beside packages `flows` and `tasks` of the user's own."""
    home = tmp_path / "home"
    environment = own_environment(home, server)
    del environment["PYTHONPATH"]
    environment["PATH"] = f"{installed}{os.pathsep}{environment['PATH']}"

    def command(folder: Path, *words: str) -> str:
        done = subprocess.run(
            [words[0] if words[0] == "bash" else str(installed / words[0]), *words[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    command(tmp_path, "grpo", "init", "shop")
    shop = tmp_path / "shop"
    for name in ("flows", "tasks", "data"):
        (shop / name).mkdir()
        (shop / name / "__init__.py").write_text('raise RuntimeError("a package of the user")')
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    assert all(
        (site / name / "py.typed").is_file() for name in ("grpo", "grpo_cli", "grpo_flows", "grpo_local", "grpo_tasks")
    )
    place = command(shop, "python", "-c", "import grpo, grpo_flows; print(grpo.__file__, grpo_flows.__file__)")
    assert str(installed.parent) in place
    assert str(ROOT) not in place
    assert "4 passed" in command(shop, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_project.py")
    # shorter than the page's training, and long enough for a promotion
    command(shop, "grpo", "train", "grpo.yaml", "--set", "training.iterations=8")
    document = read_report(home / "shop" / "report.json")
    assert document.decision.verdict == "promote"
    assert "shop" in command(shop, "grpo", "runs")
    command(shop, "grpo", "train", "grpo://configs/quickstart.yaml", "--dry-run")
    command(shop, "grpo", "check-reward", "helpfulness")
    printed = {line: command(shop, "bash", "-ec", line) for line in _lines_after_training(shop)}
    assert "models:/shop/1 candidate, champion" in printed["grpo models shop"]
    deployments = yaml.safe_load((shop / "prefect.yaml").read_text())["deployments"]
    assert [one["entrypoint"] for one in deployments] == ["grpo_flows.train.train", "grpo_flows.retrain.retrain"]
