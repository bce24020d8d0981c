"""Commands for registered models, against a real MLflow store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from grpo.policy.transformers.model import load
from grpo.registry import Registry
from grpo_flows.cli.app import app
from tests.grpo.registry.making import ANNA, make_provenance, serving
from tests.grpo.registry.test_model_card import GATES

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


def _grpo(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Registry:
    """A champion, version 1, a refused version 2, and a promotable version 3."""
    folder = tmp_path_factory.mktemp("home")
    registry = Registry(f"sqlite:///{folder}/mlflow.db", artifact_root=f"file://{folder}/mlartifacts")
    policy = load(tiny_folder)
    for key, verdict, against in (("k1", "promote", "base"), ("k2", "refuse", "k1"), ("k3", "promote", "k1")):
        tags = {"run_key": key, "policy": key, "verdict": verdict, "checkpoint_uri": f"store/{key}"}
        tags |= {"checkpoint_sha256": key, "champion_sha256": against}
        run_id = registry.open_run("tests", f"run {key}", run_key=key, params={})
        registry.register("desk", run_id, policy, tags=tags, provenance=make_provenance(**GATES))
        if key == "k1":
            registry.promote("desk", 1, reason="first", by=ANNA)
    return registry


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The registry's home, or an empty one."""
    if "registry" in request.fixturenames:
        uri = request.getfixturevalue("registry").tracking_uri
        folder = Path(uri.removeprefix("sqlite:///")).parent
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    else:
        folder = tmp_path / "empty"
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("GRPO_HOME", str(folder))
    return folder


def test_models_are_listed_with_aliases_result_verdict_and_run(registry: Registry):
    """The newest first; `--json` has the same as one document."""
    result = _grpo("models", "desk")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0::2] == ["models:/desk/3 candidate", "models:/desk/2 ", "models:/desk/1 champion"]
    facts = "success 0.8125 [0.74, 0.88], champion 0.412 [0.35, 0.47], 120 scenarios, 95 % intervals; verdict refuse; "
    assert facts in lines[3]
    assert lines[3].endswith("run run k2")
    listed = json.loads(_grpo("models", "--json").stdout)
    assert [(row["address"], row["heldout"]["candidate"]["mean"]) for row in listed] == [
        (f"models:/desk/{number}", 0.8125) for number in (3, 2, 1)
    ]
    missing = _grpo("models", "absent")
    assert (missing.exit_code, "there are desk" in missing.stderr) == (2, True)


def test_a_home_without_models_stays_as_it_is(home: Path):
    """No database is made by looking."""
    result = _grpo("models")
    assert (result.exit_code, "no model is registered" in result.stdout) == (0, True)
    assert json.loads(_grpo("models", "--json").stdout) == []
    for arguments in (("models", "desk"), ("promote", "models:/desk/1", "--reason", "x", "--dry-run")):
        assert _grpo(*arguments).exit_code == 2
    assert not home.exists()


@pytest.mark.parametrize(
    ("model", "force", "code", "text"),
    [
        ("models:/desk/3", False, 0, "champion: version 1 → version 3\n  previous: none → version 1\n"),
        ("models:/desk/2", False, 3, "passed its gates: no, desk version 2 has the verdict 'refuse'"),
        ("models:/desk/2", True, 0, "refused, but for --force"),
        ("models:/desk@champion", False, 0, "champion already; nothing would be changed"),
    ],
)
def test_a_dry_promotion_shows_the_aliases_and_the_rules(
    registry: Registry, model: str, force: bool, code: int, text: str
):
    """The exit code is that of the promotion; nothing changes."""
    before = dict(registry.client.get_registered_model("desk").tags)
    result = _grpo("promote", model, "--reason", "x", "--dry-run", *(["--force"] if force else []))
    assert (result.exit_code, text in result.stdout) == (code, True), result.output
    assert serving(registry, "desk") == (1, None)
    assert dict(registry.client.get_registered_model("desk").tags) == before


def test_a_dry_rollback_shows_where_it_would_go(registry: Registry):
    """Without an earlier version it fails as the rollback would."""
    result = _grpo("rollback", "models:/desk@champion", "--reason", "x", "--dry-run")
    assert (result.exit_code, "no version before 1" in result.stderr) == (1, True)
    registry.promote("desk", 3, reason="better", by=ANNA)
    result = _grpo("rollback", "models:/desk@champion", "--reason", "x", "--dry-run")
    assert "champion: version 3 → version 1\n  previous: version 1 → none\n" in result.stdout
    assert serving(registry, "desk") == (3, 1)
