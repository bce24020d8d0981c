"""A run with a reward of the user's own, in processes of its own: what is computed again after a change."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from tests.doubles import changed
from tests.e2e.commands import start
from tests.e2e.served import own_environment
from tests.places import DESK_MODEL, ROOT
from tests.plugins import put_package
from tests.reading import CHANGES, put_reading

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]


class Project:
    """A folder with a package `shop` on PYTHONPATH, and a home with a space and an umlaut in its name."""

    def __init__(self, folder: Path, server: str, config: dict[str, Any]) -> None:
        self.folder = folder
        self.package = put_package(folder / "code")
        self.home = folder / "ein Häuschen"
        self.environment = own_environment(self.home, server) | {"PYTHONPATH": f"{folder / 'code'}{os.pathsep}{ROOT}"}
        config = {name: value for name, value in config.items() if name != "store"}
        reward = [{"kind": "politeness", "weight": 0.9}, {"kind": "constant", "weight": 0.1}]
        self.config = changed(
            config,
            name="polite",
            scenarios={"limit": 8},
            reward=reward,
            training={"iterations": 1},
            gates=[{"kind": "length", "max_ratio": 99.0}],
        )
        self.config_file = str(folder / "run.yaml")
        Path(self.config_file).write_text(yaml.safe_dump(self.config), encoding="utf-8")

    def train(self, *, cwd: Path = ROOT) -> ReportDocument:
        """Run `grpo train`, and read the report."""
        self.command("train", self.config_file, cwd=cwd)
        return read_report(self.home / "polite" / "report.json")

    def command(self, *arguments: str, cwd: Path = ROOT, exits: tuple[int, ...] = (0, 3)) -> str:
        """Run a command of ours, and return its output."""
        output = self.folder / "code" / "output.txt"
        code, printed = start(*arguments, environment=self.environment, output=output, cwd=cwd).end()
        assert code in exits, printed
        return printed


def _computed(document: ReportDocument) -> dict[str, int]:
    """Runs of each stage that were computed, without those that were not."""
    return {stage.name: stage.runs - stage.cached for stage in document.stages if stage.runs > stage.cached}


def test_a_failure_is_not_replayed_after_its_cause_was_mended(desk_config: dict[str, Any], server: str, tmp_path: Path):
    """A reward that is the same for all ends the run; mended, the same command trains."""
    project = Project(tmp_path, server, desk_config)
    rewards = project.package / "rewards.py"
    sound = rewards.read_text()
    rewards.write_text(sound.replace("% 7", "% 1"))
    for _ in range(2):
        assert "no learning signal" in " ".join(project.command("train", project.config_file, exits=(1,)).split())
    rewards.write_text(sound)
    assert _computed(project.train())["train"] == 1


def test_a_changed_reward_is_scored_and_trained_again(desk_config: dict[str, Any], server: str, tmp_path: Path):
    """One character of a module that the reward imports: the first rollout stays a hit, all that follows runs.

    So for a line of a file that it reads. Nothing changed, from another working folder: all are hits.
    Lineage names module, package and file; `reproduce` names what differs.
    """
    project = Project(tmp_path, server, desk_config)
    first = project.train()
    assert (project.home / "artifacts" / "results").is_dir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert _computed(project.train(cwd=elsewhere)) == {}

    words = project.package / "words.py"
    words.write_text(words.read_text().replace("order", "ordes"))
    second = project.train()
    computed = _computed(second)
    assert computed["score"] >= 2
    assert computed["train"] == 1
    assert computed["rollout"] == 1  # the candidate on the held-out side; rollouts of the base are hits
    assert not {"ingest", "split", "load_base"} & {*computed}
    assert second.lineage.run != first.lineage.run

    lines = project.package / "words.txt"
    lines.write_text(lines.read_text() + "escalate\n")
    third = project.train()
    assert _computed(third)["score"] >= 2
    assert third.lineage.run not in (first.lineage.run, second.lineage.run)
    assert _computed(project.train()) == {}
    assert {path.name for path in tmp_path.iterdir()} == {"code", "ein Häuschen", "elsewhere", "run.yaml"}
    assert (project.home / "mlflow.db").is_file()
    assert list(elsewhere.iterdir()) == []

    model = f"models:/{desk_config['registry']['model_name']}@candidate"
    shown = project.command("lineage", model, "--json")
    assert "module shop.words" in shown
    assert "package shop" in shown
    assert str(lines) in shown
    words.write_text("POLITE = ('escalate', 'no')\n")
    told = " ".join(project.command("reproduce", model, exits=(1,)).split())
    assert "shop.rewards:PolitenessReward, module shop.words: was" in told


def test_what_a_reward_reads_in_any_way_is_scored_again(desk_config: dict[str, Any], server: str, tmp_path: Path):
    """Each row of docs/internals/identity.md by a run in a process of its own: a change scores again, with its number.

    All else stays a hit; unchanged, everything is. The lineage of a training names what was read.
    """
    project = Project(tmp_path, server, desk_config)
    package = put_reading(tmp_path / "code", "readings")
    reward = {"kind": "python", "object": "readings.numbers:Reading", "weight": 1.0, "reads": package.reads}
    Path(project.config_file).write_text(yaml.safe_dump(changed(project.config, reward=[reward])), encoding="utf-8")
    project.environment["GRPO_DEBUG"] = "1"
    result = tmp_path / "measured.json"

    def measure() -> tuple[float, list[str]]:
        """Mean reward of the untrained model, and the stages that were computed."""
        project.environment.update(package.variables)
        arguments = ("--model", str(DESK_MODEL), "--output-file", str(result))
        printed = project.command("evaluate", project.config_file, *arguments)
        measured = json.loads(result.read_text())["measurement"]["overall"]["reward"]["mean"]
        return measured, re.findall(r"grpo_tasks.execution.executor: (\w+) is computed", printed)

    mean, stages = measure()
    assert "score" in stages
    assert measure() == (mean, [])
    for way, (change, growth) in CHANGES.items():
        change(package)
        now, stages = measure()
        assert (way, now) == (way, pytest.approx(mean + growth / 1000, abs=1e-9))
        assert (way, stages) == (way, ["score", "evaluate_policy"])
        mean = now
    assert measure() == (mean, [])

    project.train()
    shown = project.command("lineage", f"models:/{desk_config['registry']['model_name']}@candidate", "--json")
    for name in ("thread.txt", "pyarrow.parquet", "variable READ_AT_IMPORT", "variable READ_IN_C"):
        assert name in shown
