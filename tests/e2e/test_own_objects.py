"""docs/own.md: runs with environments, agents, rewards, gates and scenarios of the user's own."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.evaluation.report import read_report
from tests.e2e.commands import start
from tests.e2e.served import own_environment
from tests.places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

Command = Callable[..., str]


def put_files(folder: Path) -> None:
    """Write each block of the page to the file that its first line names."""
    page = (ROOT / "docs" / "own.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"```\w+\n# (\S+)\n(.*?)```", page, flags=re.DOTALL):
        (folder / name).write_text(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page."""
    folder = tmp_path / "my shop"
    folder.mkdir()
    put_files(folder)
    return folder


@pytest.fixture
def command(server: str, tmp_path: Path) -> Command:
    """The command line with a home of its own; returns what it prints."""

    def run(*arguments: str, exits: int = 0) -> str:
        environment = own_environment(tmp_path / "home", server)
        code, printed = start(*arguments, environment=environment, output=tmp_path / "output.txt").end()
        assert code == exits, printed
        return " ".join(printed.split())

    return run


def computed(home: Path, name: str) -> dict[str, int]:
    """Stages of the last run that were not cached."""
    stages = read_report(home / name / "report.json").stages
    return {stage.name: stage.runs - stage.cached for stage in stages if stage.runs > stage.cached}


def test_the_page_runs_outside_of_the_repository(command: Command, folder: Path, tmp_path: Path):
    """Nothing changed, all are hits; `tests/grpo/test_user_objects.py` changes a module.

    The lineage names the modules; a misspelt option is refused before anything runs.
    """
    command("train", str(folder / "shop_desk.yaml"))
    assert computed(tmp_path / "home", "shop_desk")["rollout"] == 2 + 2  # two iterations, two sides held out
    command("train", str(folder / "shop_desk.yaml"))
    assert computed(tmp_path / "home", "shop_desk") == {}
    lineage = command("lineage", "models:/shop_desk@champion", "--json")
    for module in ("shop_environment", "shop_agent", "shop_renderer", "shop_rewards", "shop_scenarios"):
        assert f"module {module}" in lineage
    misspelt = command("train", str(folder / "shop_desk.yaml"), "--set", "agent.options.tune=3", exits=2)
    assert "shop_agent:ShopAgent has no option 'tune'. It takes tone" in misspelt
    assert "ingest" not in misspelt
    misspelt = command("train", str(folder / "shop_desk.yaml"), "--set", "policy.renderer.options.hour=3", exits=2)
    assert "shop_renderer:ShopRenderer has no option 'hour'. It takes hours" in misspelt
    assert "ingest" not in misspelt


def test_a_class_and_rewards_of_trl_and_a_gate_are_trained_cached_and_registered(
    command: Command, folder: Path, tmp_path: Path
):
    """The report names the gate, and the lineage names the modules.

    If the gate changes, only the decision is made again. If a class changes, its episodes are played again.
    """
    config, home = str(folder / "words.yaml"), tmp_path / "home"
    command("train", config)
    report = read_report(home / "words" / "report.json")
    assert [check.name for check in report.decision.checks][-1] == "apologies"
    assert set(report.iterations[0].components) == {"solved", "shortest"}
    lineage = command("lineage", "models:/words@champion", "--json")
    for module in ("words_environment", "words_rewards", "words_gates"):
        assert f"module {module}" in lineage
    gates = folder / "words_gates.py"
    gates.write_text(gates.read_text().replace("apologies", "excuses"))
    assert "the candidate has the weights of the champion" in command("train", config, exits=3)
    assert "gate" in computed(home, "words")
    assert not {"ingest", "rollout", "score", "train"} & set(computed(home, "words"))
    words = folder / "words_environment.py"
    words.write_text(words.read_text().replace("Game over.", "The game is over."))
    command("train", config, exits=3)
    assert {"rollout", "score"} <= set(computed(home, "words"))
    misspelt = command("train", config, "--set", "gates.1.options.max_shar=3", exits=2)
    assert "words_gates:no_apology has no option 'max_shar'. It takes max_share" in misspelt
    assert "ingest" not in misspelt


@pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="the extra verifiers is not installed")
def test_a_taskset_for_verifiers_is_trained(command: Command, folder: Path, tmp_path: Path):
    """Its tasks are the scenarios and its rewards the reward."""
    command("train", str(folder / "vowels.yaml"))
    assert set(read_report(tmp_path / "home" / "vowels" / "report.json").iterations[0].components) == {"environment"}
    assert "module vowels" in command("lineage", "models:/vowels@champion", "--json")


@pytest.mark.skipif(importlib.util.find_spec("verifiers") is not None, reason="the extra verifiers is installed")
def test_a_missing_package_names_its_extra(command: Command, folder: Path):
    """Before any stage."""
    message = command("train", str(folder / "vowels.yaml"), exits=2)
    assert "package verifiers is not installed. Call pip install 'grpo-agent-framework[verifiers]'" in message
