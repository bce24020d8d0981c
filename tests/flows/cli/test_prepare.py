from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from grpo.artifacts import local_path
from grpo.config.loading import load_settings
from grpo.config.pipeline import load_config
from grpo.config.retraining import RetrainConfig
from grpo_cli.app import app
from tests.grpo.retraining.curating import curate
from tests.places import DESK_SCENARIOS, ROOT

QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"


def test_a_new_config_is_the_quickstart_with_the_changes_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Called in the project it names the same files."""
    monkeypatch.chdir(ROOT)
    path = tmp_path / "mine.yaml"
    assert CliRunner().invoke(app, ["init", str(path), "--reference", "--set", "name=mine"]).exit_code == 0
    assert load_config(path) == load_config(QUICKSTART, ("name=mine",))


def test_a_new_config_elsewhere_names_files_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Called in an empty folder it points at the files that ship."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["init", "--reference"]).exit_code == 0
    settings = load_config(Path("config.yaml"))
    assert local_path(settings.policy.model).joinpath("config.json").is_file()
    assert local_path(settings.scenarios.sources[0].path).is_file()  # type: ignore[union-attr]


def test_a_file_that_is_there_is_kept(tmp_path: Path):
    """Exit code 2 and the old content; with --force the new one."""
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    assert CliRunner().invoke(app, ["init", str(path), "--reference"]).exit_code == 2
    assert path.read_text() == "mine"
    assert CliRunner().invoke(app, ["init", str(path), "--reference", "--force"]).exit_code == 0
    assert load_config(path).name == "quickstart"


def test_a_short_config_is_written_out_whole(tmp_path: Path):
    """A config that `extends` another is written as one file."""
    path, short = tmp_path / "whole.yaml", QUICKSTART.with_name("ppo.yaml")
    assert CliRunner().invoke(app, ["init", str(path), "--reference", "--from", str(short)]).exit_code == 0
    assert load_config(path) == load_config(short)
    assert "extends" not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["helpfulness"], 0, "stuffing"),
        (["conciseness", "--set", "target=20"], 3, "yes"),
        (["checks"], 2, ""),
        (["kindness"], 2, ""),
        (["conciseness", "--set", "taget=20"], 2, ""),
    ],
)
def test_check_reward_prints_the_score_of_each_probe(arguments: list[str], code: int, shown: str):
    """Exit code 3 for an exploited reward, 2 where there is nothing to check."""
    result = CliRunner().invoke(app, ["check-reward", *arguments])
    assert result.exit_code == code
    assert shown in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["config", "retrain", "tune"])
def test_the_schema_accepts_the_shipped_configs_and_scenarios(name: str):
    """As an editor checks them; a misspelt key is refused."""
    check = Draft202012Validator(json.loads(CliRunner().invoke(app, ["schema", name]).stdout))
    configs = {"config": QUICKSTART.with_name("triage.yaml"), "retrain": QUICKSTART.with_name("retrain.yaml")}
    document = yaml.safe_load(configs.get(name, QUICKSTART.with_name("tune.yaml")).read_text())
    if name == "tune":
        document["base"] = yaml.safe_load(QUICKSTART.read_text())  # an editor knows the form without the file's name
    assert [error.message for error in check.iter_errors(document)] == []
    assert not check.is_valid({**document, "nmae": "x"})


def test_the_schema_of_a_scenario_accepts_the_pack():
    """Each line of the shipped one."""
    check = Draft202012Validator(json.loads(CliRunner().invoke(app, ["schema", "scenario"]).stdout))
    lines = DESK_SCENARIOS.read_text().splitlines()
    assert len(lines) == 864
    assert all(check.is_valid(json.loads(line)) for line in lines)


@pytest.fixture
def import_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The import path and the modules of a project are those of before once the test has ended."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    yield
    for name in ("agent", "environment", "logged", "reward"):
        sys.modules.pop(name, None)


def test_a_project_is_made_once(import_path: None, tmp_path: Path):
    """A second time it is refused before a file is written; a name that no run can have, as well."""
    folder = tmp_path / "shop"
    assert CliRunner().invoke(app, ["init", str(folder)]).exit_code == 0
    (folder / "agent.py").write_text("mine")
    again = CliRunner().invoke(app, ["init", str(folder)])
    assert again.exit_code == 2
    assert (folder / "agent.py").read_text() == "mine"
    assert CliRunner().invoke(app, ["init", str(tmp_path / "a b!")]).exit_code == 2
    assert not (tmp_path / "a b!").exists()
    assert CliRunner().invoke(app, ["init"]).exit_code == 2
    config = load_config(folder / "grpo.yaml")
    assert (config.name, config.registry.model_name) == ("shop", "shop")
    assert sum(1 for line in (folder / "grpo.yaml").read_text().splitlines() if line.strip()) <= 26


@pytest.mark.filterwarnings("ignore")
def test_a_project_has_a_retraining_of_its_own(import_path: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its dry run, its deployment, and the one customer of its example log, whom curation accepts."""
    folder = tmp_path / "shop"
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert CliRunner().invoke(app, ["init", str(folder)]).exit_code == 0
    monkeypatch.chdir(folder)
    planned = CliRunner().invoke(app, ["retrain", "retrain.yaml", "--dry-run"])
    assert planned.exit_code == 0, planned.output
    assert "dry run of retraining shop-retrain" in planned.output
    assert "retrain/shop" in CliRunner().invoke(app, ["deploy", "--dry-run"]).output
    config = load_settings("retrain.yaml", RetrainConfig)
    counts = curate(config.conversations, tmp_path, settings=config.curation)
    assert (counts.records, counts.accepted) == (1, 1)
