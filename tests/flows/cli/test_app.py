from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.app import app
from flows.local.servers import mlflow_server
from flows.local.service import port_is_free
from grpo.config.loading import load_settings
from grpo.config.pipeline import load_config
from grpo.config.retraining import RetrainConfig
from grpo.errors import ConfigError
from grpo.rewards.hacking.check import check_rewards
from tests.places import ROOT

QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"
OTHER_KINDS = ("retrain", "tune")
CONFIGS = [path for path in sorted((ROOT / "data" / "configs").glob("*.yaml")) if path.stem not in OTHER_KINDS]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path: Path):
    """What we ship loads."""
    assert load_config(path).name == path.stem


def test_the_shipped_retraining_is_valid(monkeypatch: pytest.MonkeyPatch):
    """It loads, and the run that it repeats takes its changes."""
    monkeypatch.chdir(ROOT)
    config = load_settings(ROOT / "data" / "configs" / "retrain.yaml", RetrainConfig)
    assert load_config(Path(config.pipeline), config.overrides).training.iterations == 12


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_asks_for_rewards_that_may_train(path: Path):
    """No probe fools them, or the config says so."""
    check_rewards(load_config(path).reward)


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
def test_admit_shows_what_each_probe_gets(arguments: list[str], code: int, shown: str):
    """Exit code 3 where one fools the reward, 2 where there is nothing to try."""
    result = CliRunner().invoke(app, ["admit", *arguments])
    assert result.exit_code == code
    assert shown in result.output
    assert "Traceback" not in result.output


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
        ("rollout.staleness=1", r"rollout\.staleness 1 .*set training\.importance_sampling_cap"),
        ("rollout.informative_groups=97", r"rollout: .*3 rounds of 32 scenarios are 96 groups"),
        ("rollout.dask_address='tcp://127.0.0.1:8786'", r"rollout: .*not read with runner threads"),
    ],
)
def test_a_config_that_cannot_be_used_names_key_value_and_rule(override: str, message: str):
    """Exit code 2, no traceback, the place in the message."""
    result = CliRunner().invoke(app, ["train", str(QUICKSTART), "--set", override, "--dry-run"])
    assert result.exit_code == 2
    with pytest.raises(ConfigError, match=message):
        load_config(QUICKSTART, (override,))


def test_a_missing_config_is_named(tmp_path: Path):
    """The error says where the shipped ones are."""
    with pytest.raises(ConfigError, match=r"no config at .*data/configs"):
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
def test_a_config_that_is_no_mapping_or_no_safe_yaml_is_refused(tmp_path: Path, text: str):
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
    """A good config exits 0 without starting anything."""
    result = CliRunner().invoke(app, ["train", str(QUICKSTART), "--dry-run"])
    assert result.exit_code == 0
    assert "valid configuration" in result.output


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path):
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
        command = [sys.executable, "-m", "flows.cli.app", "train", str(QUICKSTART)]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_databases_are_made_once_and_for_all(tmp_path: Path):
    """`grpo databases` from nothing: both services find their tables, and so does a second call."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))},
        "GRPO_HOME": str(tmp_path / "home"),
    }
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "flows.cli.app", "databases"], env=environment, cwd=ROOT, timeout=300, check=True
        )
    tables = {}
    for path in (tmp_path / "home" / "prefect" / "prefect.db", tmp_path / "home" / "mlflow.db"):
        with closing(sqlite3.connect(path)) as database:
            tables[path.name] = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    assert {"flow_run", "task_run", "artifact"} <= tables["prefect.db"]
    assert {"runs", "registered_models"} <= tables["mlflow.db"]


def test_importing_the_library_is_light():
    """`import grpo` loads neither torch nor Prefect nor MLflow."""
    code = "import sys, grpo; print([m for m in ('torch', 'prefect', 'mlflow', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_that_we_start_phones_home():
    """Telemetry of every package is off in the environment that the command sets up."""
    code = (
        "from flows import settings; settings.apply(); import os;"
        "print(os.environ['DO_NOT_TRACK'], os.environ['PREFECT_SERVER_ANALYTICS_ENABLED'],"
        "os.environ['MLFLOW_DISABLE_TELEMETRY'], os.environ['GX_ANALYTICS_ENABLED'], os.environ['HF_HUB_OFFLINE'])"
    )
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["1", "false", "true", "false", "1"]


def test_the_pages_of_mlflow_send_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its server tells the browser that telemetry is off, whatever the page says of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("GRPO_MLFLOW_PORT", str(probe.getsockname()[1]))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    path = "ajax-api/3.0/mlflow/ui-telemetry"
    with mlflow_server(tmp_path) as url, urllib.request.urlopen(f"{url}/{path}", timeout=30) as response:
        answer = json.load(response)
    assert answer["disable_ui_telemetry"] is True


def test_the_pages_end_when_they_are_told_to(tmp_path: Path):
    """`grpo ui` under SIGTERM leaves no server behind."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        ports = first.getsockname()[1], second.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))},
        "GRPO_HOME": str(tmp_path),
        "PREFECT_SERVER_API_PORT": str(ports[0]),
        "GRPO_MLFLOW_PORT": str(ports[1]),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "flows.cli.app", "ui"]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert str(ports[0]) in process.stdout.readline()
        assert not any(port_is_free("127.0.0.1", port) for port in ports)
        process.terminate()
        process.wait(timeout=300)
    assert all(port_is_free("127.0.0.1", port) for port in ports)
