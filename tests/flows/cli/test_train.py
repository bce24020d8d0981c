"""Configs that ship, configs that are refused, and the dry run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from grpo.config.loading import load_settings
from grpo.config.pipeline import load_config
from grpo.config.retraining import RetrainConfig
from grpo.errors import ConfigError
from grpo.rewards.hacking.check import check_rewards
from grpo_cli.app import app
from tests.doubles import short_run
from tests.places import ROOT

QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"
OTHER_KINDS = ("retrain", "tune")
CONFIGS = [path for path in sorted((ROOT / "data" / "configs").glob("*.yaml")) if path.stem not in OTHER_KINDS]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path: Path):
    """Every file in data/configs loads."""
    assert load_config(path).name == path.stem


def test_the_shipped_retraining_is_valid(monkeypatch: pytest.MonkeyPatch):
    """It loads, and the run that it repeats takes its changes."""
    monkeypatch.chdir(ROOT)
    config = load_settings(ROOT / "data" / "configs" / "retrain.yaml", RetrainConfig)
    assert load_config(Path(config.pipeline), config.overrides).training.iterations == 12


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_has_rewards_that_withstand_the_probes(path: Path):
    """No probe exploits them, or the config accepts it."""
    check_rewards(load_config(path).reward)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainning.iterations=3", r"trainning: Extra inputs are not permitted"),
        ("training.iterations=many", r"training\.iterations: .*integer.*got 'many'"),
        ("training.iterations=0", r"training\.iterations: .*greater than or equal to 1"),
        ("rollout.group_size=1", r"rollout\.group_size: .*greater than or equal to 2"),
        ("environment.kind=moon", r"environment: .*'moon'"),
        ("scenarios.sources.0.kind=xml", r"scenarios\.sources\.0: .*'xml'"),
        ("name=../../etc", r"name: .*pattern"),
        ("scenarios.sources.7.kind=csv", "does not fit the config"),
        ("nonsense", "not of the form"),
        ("rollout.staleness=1", r"rollout\.staleness 1 .*Set training\.importance_sampling_cap"),
        ("rollout.mode=continuous", r"rollout\.mode continuous .*Set training\.importance_sampling_cap"),
        ("rollout={mode: continuous, shards: 2, informative_groups: 4}", "combined with shards 2, informative_groups"),
        ("rollout={mode: continuous, runner: dask, curriculum: {}}", "combined with runner dask, curriculum"),
        ("rollout={mode: continuous, staleness: 1}", "staleness has no effect with mode continuous"),
        ("rollout.max_staleness=2", "max_staleness has no effect with mode stages"),
        ("rollout.informative_groups=97", r"rollout: .*3 rounds of 32 scenarios are 96 groups"),
        ("rollout.dask_address='tcp://127.0.0.1:8786'", r"rollout: .*no effect with runner threads"),
    ],
)
def test_a_config_that_cannot_be_used_names_key_value_and_rule(override: str, message: str):
    """Exit code 2, no traceback, the place in the message."""
    result = CliRunner().invoke(app, ["train", str(QUICKSTART), "--set", override, "--dry-run"])
    assert result.exit_code == 2
    with pytest.raises(ConfigError, match=message):
        load_config(QUICKSTART, (override,))


def test_a_missing_config_is_named(tmp_path: Path):
    """The error names the command that writes one."""
    with pytest.raises(ConfigError, match=r"no config at .*grpo init"):
        load_config(tmp_path / "none.yaml")


def test_a_config_may_hold_only_what_differs_from_another(tmp_path: Path):
    """One value in a section is changed, its neighbours stay."""
    (tmp_path / "base.yaml").write_text(QUICKSTART.read_text())
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nname: mine\ntraining: {iterations: 2}\n")
    mine, base = load_config(tmp_path / "mine.yaml"), load_config(tmp_path / "base.yaml")
    assert mine.training == base.training.model_copy(update={"iterations": 2})
    assert mine.rollout == base.rollout


@pytest.mark.parametrize("name", ["../base.yaml", "/etc/passwd", "mine.yaml", "3", "''"])
def test_a_config_extends_only_a_file_beside_it(tmp_path: Path, name: str):
    """No path out of the folder, no chain, no circle."""
    (tmp_path / "mine.yaml").write_text(f"extends: {name}\nname: mine\n")
    with pytest.raises(ConfigError, match="extend"):
        load_config(tmp_path / "mine.yaml")


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "!!python/object/apply:os.system ['true']"])
def test_a_config_that_is_not_a_mapping_in_safe_yaml_is_refused(tmp_path: Path, text: str):
    """Lists, broken YAML and objects are not settings."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_config(path)


@pytest.mark.parametrize(
    "override", ["triggers=[{kind: boredom}]", "curation.licences=[]", "mixture.conversation_fraction=1.5"]
)
def test_a_retraining_that_cannot_be_is_wrong_input(override: str):
    """Exit code 2 before any server starts."""
    config = str(ROOT / "data" / "configs" / "retrain.yaml")
    assert CliRunner().invoke(app, ["retrain", config, "--set", override]).exit_code == 2


def test_a_dry_run_checks_and_stops():
    """A good config exits 0 without starting anything, and is named as it was given."""
    result = CliRunner().invoke(app, ["train", "grpo://configs/quickstart.yaml", "--dry-run"])
    assert result.exit_code == 0
    assert "grpo://configs/quickstart.yaml is a valid configuration" in result.output


OWN = """
def desk(max_turns: int = 4): ...
def customers(count: int = 4): ...
class Brief:
    def __init__(self, weight: float): ...
class Floor:
    def __init__(self, least: float): ...
    def __call__(self, evidence): ...
"""


OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "turns": {"environment": {"kind": "python", "object": "own_of_train:desk", "options": {"turns": 3}}},
    "words": {"reward": [{"kind": "python", "object": "own_of_train:Brief", "weight": 1, "options": {"words": 3}}]},
    "most": {"gates": [{"kind": "python", "object": "own_of_train:Floor", "options": {"most": 3}}]},
    "number": {
        "scenarios": {"sources": [{"kind": "python", "object": "own_of_train:customers", "options": {"number": 3}}]}
    },
}
"""A section of a config by the option in it that its object does not take."""


@pytest.mark.parametrize("option", OWN_SETTINGS)
@pytest.mark.parametrize("command", ["train", "evaluate", "tune", "retrain"])
def test_a_wrong_option_of_an_own_object_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str
):
    """Nothing was written into the home, in which a server would have its database."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_of_train.py").write_text(OWN)
    around = {
        "tune": {"name": "study", "base": "run.yaml"},
        "retrain": {
            "name": "again",
            "pipeline": "run.yaml",
            "conversations": [{"kind": "served", "path": "log"}],
            "curation": {"licences": ["own"]},
        },
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(short_run(tmp_path, **OWN_SETTINGS[option])))
    (tmp_path / f"{command}.yaml").write_text(yaml.safe_dump(around.get(command)))
    config = tmp_path / ("run.yaml" if command not in around else f"{command}.yaml")
    result = CliRunner().invoke(app, [command, str(config)])
    sys.modules.pop("own_of_train", None)
    assert result.exit_code == 2, result.output
    assert f"has no option '{option}'" in " ".join(result.stderr.split())
    assert not (tmp_path / "home").exists()


def test_a_port_in_use_is_reported_before_anything_starts(tmp_path: Path):
    """Another program on the port: the error names the port and both ways out."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"},
            "GRPO_HOME": str(tmp_path),
            "PREFECT_SERVER_API_PORT": str(port),
        }
        command = [sys.executable, "-m", "grpo_cli", "train", str(QUICKSTART)]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert "Traceback" not in done.stderr
