"""docs/own.md: a run with an environment, an agent, rewards and scenarios of the user's own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.evaluation.report import read_report
from tests.e2e.served import own_environment
from tests.places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]


def put_files(folder: Path) -> None:
    """Write each block of the page to the file that its first line names."""
    page = (ROOT / "docs" / "own.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"```\w+\n# (\S+)\n(.*?)```", page, flags=re.DOTALL):
        (folder / name).write_text(content)


def test_the_page_runs_outside_of_the_repository(server: str, tmp_path: Path):
    """Nothing changed, all are hits; `tests/grpo/test_user_objects.py` changes a module.

    The lineage names the modules; a misspelt option is refused before anything runs.
    """
    folder, home = tmp_path / "my shop", tmp_path / "home"
    folder.mkdir()
    put_files(folder)

    def command(*arguments: str, exits: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "grpo_flows.cli", *arguments],
            cwd=ROOT,
            env=own_environment(home, server),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == exits, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def computed() -> dict[str, int]:
        command("train", str(folder / "shop.yaml"))
        document = read_report(home / "shop" / "report.json")
        return {stage.name: stage.runs - stage.cached for stage in document.stages if stage.runs > stage.cached}

    assert computed()["rollout"] == 2 + 2  # two iterations, two sides held out
    assert computed() == {}
    lineage = command("lineage", "models:/shop@champion", "--json")
    for module in ("shop_environment", "shop_agent", "shop_rewards", "shop_scenarios"):
        assert f"module {module}" in lineage
    misspelt = command("train", str(folder / "shop.yaml"), "--set", "agent.options.tune=3", exits=2)
    assert "shop_agent:ShopAgent has no option 'tune'; it takes tone" in misspelt
    assert "ingest" not in misspelt
