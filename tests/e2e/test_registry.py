"""A run, its version in service, and everything that is asked of it afterwards, against real services."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.report import read_report
from grpo.storage.signing import KEY, key_file
from grpo_cli.app import app
from grpo_tasks.registry import registry
from tests.doubles import short_run
from tests.places import DESK_SCENARIOS, ROOT
from tests.ports import own_port

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]
MODEL = "operated"


def grpo(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first scenarios of the pack that ships, in a file that tests may change."""
    lines = DESK_SCENARIOS.read_text().splitlines()
    path = tmp_path_factory.mktemp("pack") / "desk.jsonl"
    path.write_text("\n".join(lines[:120]) + "\n")
    return path


@pytest.fixture(scope="module")
def config(pack: Path, tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    """Two iterations, a few scenarios."""
    document = short_run(
        tmp_path_factory.mktemp("operated"),
        name=MODEL,
        scenarios={"sources": [{"kind": "jsonl", "path": str(pack)}], "limit": 12},
        rollout={"scenarios": 4, "max_new_tokens": 32},
        gates=[{"kind": "improvement", "margin": 0.6}],  # two iterations do not clear it
        registry={"model_name": MODEL},
    )
    return PipelineConfig.model_validate(document)


@pytest.fixture(scope="module")
def version(config: PipelineConfig, server: str) -> int:
    """The version that the run registered; it was refused, and promoted by force."""
    from grpo_flows.train import train

    promotion = train(config)
    assert promotion.decision.verdict == "refuse"
    assert promotion.version is not None
    refused = grpo("promote", f"models:/{MODEL}@candidate", "--reason", "I like it")
    assert (refused.exit_code, registry().champion(MODEL)) == (3, None), refused.output
    assert "has the verdict 'refuse'" in refused.stderr.replace("\n", " ")
    forced = grpo("promote", f"models:/{MODEL}@candidate", "--reason", "I like it", "--force")
    assert forced.exit_code == 0, forced.output
    assert "version 1 is champion, forced (I like it)" in forced.output
    return promotion.version.version


def test_a_promotion_without_a_server_starts_none(version: int, tmp_path: Path):
    """The command changes the registry itself: Prefect is not imported."""
    script = (
        "import sys\nfrom grpo_cli.app import app\n"
        "try:\n    app(['promote', sys.argv[1], '--reason', 'again'])\nexcept SystemExit as end:\n    print(end.code)\n"
        "print('prefect' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    environment |= {"GRPO_HOME": str(tmp_path), "MLFLOW_TRACKING_URI": registry().tracking_uri}
    environment |= {KEY: key_file().read_text().strip()}  # another machine of the same registry
    process = subprocess.run(
        [sys.executable, "-c", script, f"models:/{MODEL}@champion"],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = [f"{MODEL}: this version is champion already. Nothing was changed", "0", "False"]
    assert process.stdout.splitlines() == lines, process.stderr
    assert not list((tmp_path / "services").glob("prefect*"))


def test_lineage_tells_what_a_version_was_made_from_and_who_promoted_it(version: int, config: PipelineConfig):
    """As tables for people, and as one document with the whole config."""
    shown = grpo("lineage", f"models:/{MODEL}@champion")
    assert shown.exit_code == 0, shown.output
    for told in ("commit", "seed", "trained from policy", "promote: version", ", forced, by", "I like it"):
        assert told in " ".join(shown.output.split()), told
    document = json.loads(grpo("lineage", f"models:/{MODEL}@champion", "--json").stdout)
    (gate,) = config.gates
    settled = config.model_copy(update={"gates": (gate.model_copy(update={"metric": "success"}),)})
    assert PipelineConfig.model_validate(document["provenance"]["config"]) == settled, "with the metric that was chosen"
    assert len(document["provenance"]["policies"]) == 3
    (promoted,) = document["history"]
    assert (promoted["champion"], promoted["forced"], promoted["replaced"]) == (version, True, None)
    assert promoted["by"]["run"]
    assert promoted["checks"].keys() == {"improvement in success"}
    unknown = grpo("lineage", f"models:/{MODEL}@unknown")
    assert unknown.exit_code == 2
    assert "no model at" in unknown.stderr


def test_a_first_champion_cannot_be_rolled_back(version: int):
    """The error says that there is nothing before it."""
    result = grpo("rollback", f"models:/{MODEL}@champion", "--reason", "no")
    assert result.exit_code == 1
    assert "no version before" in result.stderr


def test_a_version_is_made_again_with_the_same_weights(version: int, config: PipelineConfig, home: Path):
    """From nothing, to the same bits; the cache and the registry of the run are as they were."""
    from grpo_flows.train import train

    stored = {path for path in Path(config.store).rglob("*")}
    result = grpo("reproduce", f"models:/{MODEL}@champion")
    assert result.exit_code == 0, result.output
    assert "equal weights" in result.output
    assert {path for path in Path(config.store).rglob("*")} == stored
    assert len(registry().versions(MODEL)) == 1
    assert not list(home.glob("reproduce-*"))
    train(config)
    stages = read_report(home / MODEL / "report.json").stages
    assert all(stage.cached == stage.runs for stage in stages)


def test_sources_that_changed_cannot_be_reproduced(version: int, pack: Path):
    """Nothing is trained; the error says which setting names them."""
    whole = pack.read_text(encoding="utf-8")
    try:
        pack.write_text(whole + whole.splitlines()[0].replace("desk-00000", "desk-99999") + "\n", encoding="utf-8")
        result = grpo("reproduce", f"models:/{MODEL}@champion")
    finally:
        pack.write_text(whole, encoding="utf-8")
    assert result.exit_code == 1
    assert "the files of scenarios.sources have changed" in " ".join(result.stderr.split())


BARE = """
import sys
sys.path.append(sys.argv[1])
try:
    import grpo
except ModuleNotFoundError:
    pass
else:
    raise SystemExit(f"grpo is importable from {grpo.__file__}")
import mlflow
mlflow.set_tracking_uri(sys.argv[2])
model = mlflow.pyfunc.load_model(sys.argv[3])
answer = model.predict({"messages": [{"role": "user", "content": "My order 1234 is broken."}], "max_tokens": 4})
print("ANSWER", answer[0]["choices"][0]["message"])
"""


def test_a_registered_model_answers_where_nothing_of_the_project_is_installed(version: int, tmp_path: Path):
    """A Python that sees the packages and neither the project nor where it is linked from."""
    packages = sysconfig.get_path("purelib")
    command = [sys.executable, "-I", "-S", "-c", BARE, packages, registry().tracking_uri, f"models:/{MODEL}@champion"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "'role': 'assistant'" in done.stdout.split("ANSWER")[1]


@pytest.fixture
def served(version: int, tmp_path: Path) -> Iterator[str]:
    """The champion behind `mlflow models serve`."""
    port = own_port()
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", f"models:/{MODEL}@champion"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)],
            cwd=tmp_path,
            env={
                **os.environ,
                "MLFLOW_TRACKING_URI": registry().tracking_uri,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # uvicorn is started by name
            },
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=240)


def test_mlflow_serves_the_champion_over_http(served: str):
    """A chat goes in, the assistant's words come out."""
    chat = {"messages": [{"role": "user", "content": "My order 1234 is broken."}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{served}/invocations", data=json.dumps(chat).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=240) as response:
        (answer,) = json.loads(response.read())
    assert answer["choices"][0]["message"]["role"] == "assistant"
