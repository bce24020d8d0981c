"""Commands for registered models, against a real MLflow store."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from grpo.policy.transformers.model import load
from grpo.registry import Registry
from grpo_cli.app import app
from tests.grpo.registry.making import ANNA, make_provenance, serving
from tests.grpo.registry.test_model_card import GATES

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


def _grpo(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[Registry]:
    """Of desk and till a champion, version 1, a refused version 2, and a promotable version 3."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_HOME", str(folder))  # whose key signs them
        yield _made_registry(folder, tiny_folder)


def _made_registry(folder: Path, tiny_folder: Path) -> Registry:
    registry = Registry(f"sqlite:///{folder}/mlflow.db", artifact_root=f"file://{folder}/mlartifacts")
    policy = load(tiny_folder)
    versions = (("k1", "promote", "base"), ("k2", "refuse", "k1"), ("k3", "promote", "k1"))
    for name, (key, verdict, against) in itertools.product(("desk", "till"), versions):
        tags = {"run_key": f"{name} {key}", "policy": key, "verdict": verdict, "checkpoint_uri": f"store/{key}"}
        tags |= {"checkpoint_sha256": key, "champion_sha256": against}
        run_id = registry.open_run("tests", f"run {key}", run_key=f"{name} {key}", params={})
        registry.register(name, run_id, policy, tags=tags, provenance=make_provenance(**GATES))
        if key == "k1":
            registry.promote(name, 1, reason="first", by=ANNA)
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
    listed = [row for row in json.loads(_grpo("models", "--json").stdout) if row["address"].startswith("models:/desk/")]
    assert [(row["address"], row["heldout"]["candidate"]["mean"]) for row in listed] == [
        (f"models:/desk/{number}", 0.8125) for number in (3, 2, 1)
    ]
    missing = _grpo("models", "absent")
    assert missing.exit_code == 2
    assert re.search(r"There are .*\bdesk\b", missing.stderr)  # and models of other tests


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
        ("models:/desk/2", True, 0, "it would be refused, but --force promotes it"),
        ("models:/desk@champion", False, 0, "champion already. Nothing would be changed"),
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
    result = _grpo("rollback", "models:/till@champion", "--reason", "x", "--dry-run")
    assert (result.exit_code, "no version before 1" in result.stderr) == (1, True)
    registry.promote("till", 3, reason="better", by=ANNA)
    result = _grpo("rollback", "models:/till@champion", "--reason", "x", "--dry-run")
    assert "champion: version 3 → version 1\n  previous: version 1 → none\n" in result.stdout
    assert serving(registry, "till") == (3, 1)


def test_an_unsigned_version_is_listed_with_the_command_that_admits_it(registry: Registry, tiny_folder: Path):
    """And an alias that was moved by hand to it; the promoted version stays champion."""
    client = registry.client
    client.create_registered_model("listed")
    client.create_model_version("listed", source="file:///nowhere")
    client.set_registered_model_alias("listed", "champion", "1")
    shown = _grpo("models", "listed").stdout
    assert "models:/listed/1 is not signed, so nothing in it is trusted. `grpo admit models:/listed/1" in shown
    assert "the alias champion of listed was moved by hand to version 1, and no version of it was promoted" in shown


def test_a_version_is_admitted_after_a_question_and_then_needs_force(registry: Registry, tiny_folder: Path):
    """No answers 3 and signs nothing; `--yes` does not ask."""
    import mlflow

    policy = load(tiny_folder)
    mlflow.set_tracking_uri(registry.tracking_uri)
    with mlflow.start_run(experiment_id=registry.experiment("tests")):
        info = mlflow.transformers.log_model(
            transformers_model={"model": policy.model, "tokenizer": policy.tokenizer},
            name="own",
            task="llm/v1/chat",
            pip_requirements=[],
        )
    mlflow.register_model(info.model_uri, "brought")
    refused = _grpo("promote", "models:/brought/1", "--reason", "x")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "models:/brought/1 is not signed" in refused.stderr
    declined = CliRunner().invoke(app, ["admit", "models:/brought/1", "--reason", "mine"], input="n\n")
    assert declined.exit_code == 3
    assert "provenance        none" in declined.stdout
    assert "is not signed" in _grpo("models", "brought").stdout
    admitted = _grpo("admit", "models:/brought/1", "--reason", "mine", "--yes")
    assert admitted.exit_code == 0, admitted.output
    assert "To put it into service: grpo promote models:/brought/1 --reason WHY --force" in admitted.stdout
    assert _grpo("promote", "models:/brought/1", "--reason", "x").exit_code == 3
    assert _grpo("promote", "models:/brought/1", "--reason", "x", "--force").exit_code == 0
    assert serving(registry, "brought") == (1, None)
