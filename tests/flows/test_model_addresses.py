"""A run whose model is on a hub: pinned in its lineage, cached by the commit, shown by the dry run and by doctor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.report import read_report
from grpo_cli.app import app
from grpo_tasks.registry import registry
from tests.doubles import changed, short_run
from tests.hub_server import Hub, hub_server, hub_variables, model_files
from tests.places import DESK_MODEL

pytestmark = pytest.mark.filterwarnings("ignore")

NAME = "acme/desk"
TOKEN = "hf_ThisIsATokenOfNobodyAtAll"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A private hub with the shipped model, for the processes that the test starts as well."""
    with hub_server(monkeypatch, tmp_path / "cache") as running:
        repo = running.add(NAME, model_files(DESK_MODEL))
        repo.refusal, repo.token = (401, "RepoNotFound"), TOKEN
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        for name, value in hub_variables(running, tmp_path / "cache").items():
            monkeypatch.setenv(name, value)
        yield running


def _config(folder: Path) -> dict[str, Any]:
    return short_run(
        folder,
        name="hub",
        policy={"model": NAME},
        scenarios={"limit": 8},
        rollout={"max_new_tokens": 24},
        training={"iterations": 1},
        registry={"model_name": "hub"},
    )


def test_a_run_is_of_a_commit(hub: Hub, home: Path, server: str, tmp_path: Path):
    """Its lineage names it; the same commit is a cache hit, without a request for a file; a new one is a new base."""
    from grpo_flows.reproduce import reproduce
    from grpo_flows.train import train

    def run(**sections: Any) -> tuple[int, str]:
        config = PipelineConfig.model_validate(changed(_config(tmp_path), **sections))
        hub.requests.clear()
        train(config)
        report = read_report(home / "hub" / "report.json")
        (hits,) = (stage.cached for stage in report.stages if stage.name == "load_base")
        return hits, str(yaml.safe_load(report.config)["policy"]["model"])

    first = hub.repos[NAME].branches["main"]
    assert run() == (0, f"{NAME}@{first}")
    assert run(seed=4) == (1, f"{NAME}@{first}")
    assert hub.fetched() == []
    assert run(seed=4, policy={"model": f"{NAME}@{first}"}) == (1, f"{NAME}@{first}")
    files = model_files(DESK_MODEL)
    config = json.loads(files["config.json"]) | {"rms_norm_eps": 1e-4}
    second = hub.repos[NAME].commit({**files, "config.json": json.dumps(config).encode()})
    assert run() == (0, f"{NAME}@{second}")

    version = registry().resolve("models:/hub/1")
    provenance = registry().provenance(version)
    assert provenance.config["policy"]["model"] == f"{NAME}@{first}"  # type: ignore[call-overload, index]
    assert reproduce("models:/hub/1").equal  # though main has moved
    left = [path for path in (*home.rglob("*"), *(tmp_path / "store").rglob("*")) if path.is_file()]
    assert not [path for path in left if TOKEN.encode() in path.read_bytes()]


def test_an_evaluation_is_of_a_commit(hub: Hub, home: Path, server: str, tmp_path: Path):
    """The document names it."""
    from grpo_flows.evaluate import evaluate

    config = PipelineConfig.model_validate(changed(_config(tmp_path), policy={"model": str(DESK_MODEL)}))
    document = evaluate(config, model=NAME, num_episodes=4, output_file=str(tmp_path / "evaluation.json"))
    assert document.model == f"{NAME}@{hub.repos[NAME].branches['main']}"
    assert document.measurement.episodes == 4


@pytest.fixture
def command(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command about the config, in a home of its own."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(_config(tmp_path)))
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    return lambda *words: CliRunner().invoke(app, [str(path) if word == "CONFIG" else word for word in words])


@pytest.mark.parametrize("words", [("train", "CONFIG", "--dry-run"), ("doctor", "CONFIG", "--json")])
def test_a_command_shows_what_a_run_would_fetch(hub: Hub, command: Callable[..., Result], words: tuple[str, ...]):
    """The commit, the size and the bytes that are missing: those of the weights, which are not fetched."""
    done = command(*words)
    shown = " ".join(done.stdout.split())
    commit = hub.repos[NAME].branches["main"]
    assert f"{NAME}@{commit} (hub, commit {commit[:12]}, 6 files), 4.9 MiB, 4.8 MiB of it to be fetched" in shown
    assert hub.fetched()
    assert "model.safetensors" not in hub.fetched()
    assert all(NAME in request for request in hub.requests)  # nothing else is asked, and no telemetry is sent
    assert TOKEN not in done.stdout + done.stderr


def test_a_refused_model_ends_a_command_with_one_sentence(hub: Hub, command: Callable[..., Result]):
    """Gated: the page and the variable, no traceback, no token."""
    hub.repos[NAME].refusal, hub.repos[NAME].token = (403, "GatedRepo"), "another"
    done = command("train", "CONFIG")
    text = " ".join((done.stdout + done.stderr).split())
    assert done.exit_code == 1
    assert f"{NAME} is gated: accept its terms at {hub.url}/{NAME}, and set HF_TOKEN to a token of that account" in text
    assert "Traceback" not in text
    assert TOKEN not in text
