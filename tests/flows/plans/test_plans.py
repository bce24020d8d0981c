"""Dry runs of commands: what they print, and that they write nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from grpo_cli.app import app
from tests.places import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that does not exist; the working folder is the project's."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _dry(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--dry-run"])


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ("evaluate", "data/configs/quickstart.yaml", "--model", "data/models/desk_clerk"),
            ["model: data/models/desk_clerk", "computed: ingest and the stages after it"],
        ),
        (("tune", "data/configs/tune.yaml", "--trials", "4"), ["trials: 4, 2 at once", "training.learning_rate"]),
        (
            ("retrain", "data/configs/retrain.yaml"),
            ["champion: none of support-desk", "unknown until ingest has run", "new_conversations"],
        ),
        (("pretrain",), ["data/models/desk_clerk, replaced", "864 scenarios"]),
        (
            ("deploy", "--gpu-slots", "3"),
            ["limit gpu: 3", "retrain/nightly: pool cpu, queue training; schedule 0 2 * * * UTC"],
        ),
        (("up",), ["prefect: started", "worker-gpu: started", "promote/manual: pool cpu"]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_dry_run_names_what_would_happen_and_writes_nothing(home: Path, arguments: tuple[str, ...], lines: list[str]):
    """No home, no database, no server."""
    result = _dry(*arguments)
    assert result.exit_code == 0, result.output
    assert [line for line in lines if line not in result.stdout] == []
    assert "nothing was written or started" in result.stdout
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "data/configs/quickstart.yaml"), "no model at models:/support-desk@champion"),
        (("evaluate", "data/configs/quickstart.yaml", "--model", "nowhere"), "no model in nowhere"),
        (("reproduce", "models:/support-desk@champion"), "no model is registered here"),
        (("deploy", "--deployments", "nowhere.yaml"), "the file nowhere.yaml does not exist"),
        (("tune", "data/configs/tune.yaml", "--set", "base.name=."), "name"),
    ],
)
def test_a_dry_run_refuses_what_the_command_would_refuse(home: Path, arguments: tuple[str, ...], message: str):
    """Exit code 2, and nothing is left."""
    result = _dry(*arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert not home.exists()


def test_a_file_that_holds_no_deployments_is_named(home: Path, tmp_path: Path):
    """Broken YAML, and YAML of something else."""
    for text in ("deployments: [", "name: x", "deployments: [3]"):
        (file := tmp_path / "prefect.yaml").write_text(text)
        result = _dry("deploy", "--deployments", str(file))
        assert (result.exit_code, "is not a file of deployments" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "kind", ["grpo.config.retrainig:RetrainConfig", "grpo.config.retraining:Retrain", "json:loads"]
)
def test_a_mistyped_kind_of_config_is_named_with_its_deployment(home: Path, tmp_path: Path, kind: str):
    """The step is known by its field `kind`."""
    (file := tmp_path / "prefect.yaml").write_text(
        "deployments:\n"
        "  - name: nightly\n    entrypoint: grpo_flows.retrain.retrain\n    work_pool: {name: cpu}\n"
        f"    build: [{{a.load_parameters: {{file: retrain.yaml, kind: '{kind}'}}}}]\n"
    )
    result = _dry("deploy", "--deployments", str(file))
    assert result.exit_code == 2
    assert f"deployment retrain/nightly: build, load_parameters: kind '{kind}'" in " ".join(result.stderr.split())
