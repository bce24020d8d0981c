"""One machine that becomes a team: the commands of docs/operations.md, on a real PostgreSQL and an S3 server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from grpo.evaluation.report import read_report
from grpo.serving.access.keys import KeyStore
from tests.doubles import changed
from tests.e2e.commands import program
from tests.e2e.postgres import Cluster, postgres
from tests.new_homes import put_databases
from tests.object_store import object_store
from tests.places import ROOT
from tests.ports import own_port

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]
MODEL = "support-desk"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgres() as running:
        yield running


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of a bucket, whose address and keys are in the environment."""
    with object_store(monkeypatch):
        yield "grpo"


def _commands(bucket: str, cluster: Cluster) -> str:
    """The commands of the page, with the addresses of the test."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.split("\n## Move the registry to PostgreSQL\n")[1].split("\n## ")[0]
    lines = re.findall(r"^    (.+)$", section, re.MULTILINE)
    assert [line.split()[0] for line in lines].count("grpo") == 4
    return (
        "\n".join(lines).replace("BUCKET", bucket).replace("grpo:…@db.internal", f"postgres@127.0.0.1:{cluster.port}")
    )


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Variables of a shell that finds `grpo`, and ports that no other test has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW", "GRPO"))}
    with program() as grpo:
        yield {
            **kept,
            "PATH": f"{grpo.parent}:{os.environ['PATH']}",
            "PREFECT_SERVER_API_PORT": str(own_port()),
            "GRPO_MLFLOW_PORT": str(own_port()),
            "GRPO_SERVE_PORT": str(own_port()),
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "flows", ROOT / "tasks"))),
            "OMP_NUM_THREADS": "1",
        }


def _shell(script: str, folder: Path, environment: dict[str, str]) -> str:
    """Output of a script that has to end without an error."""
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=(output := (folder / "output.txt").open("w+")),
        stderr=subprocess.STDOUT,
        timeout=600,
        check=False,
    )
    output.seek(0)
    printed = output.read()
    assert done.returncode == 0, printed
    return printed


def _chat(address: str, key: str) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Where is my order?"}], "max_tokens": 8}
    answer = httpx.post(
        f"{address}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=240
    )
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    return document


def test_a_machine_moves_into_postgresql_and_a_bucket_and_goes_on(
    desk_config: dict[str, Any], cluster: Cluster, bucket: str, environment: dict[str, str], tmp_path: Path
):
    """Two promotions, the page's commands, then in a home that has only the key: all stages are cache hits.

    The champion is the same, is served and evaluated, and a rollback restores the version before it.
    """
    for name in ("mlflow", "prefect"):
        cluster.database(name)
    project = tmp_path / "project"
    put_databases(project / "runs")
    (project / "data").symlink_to(ROOT / "data")
    shutil.copy2(ROOT / "prefect.yaml", project)
    config = changed(
        {name: value for name, value in desk_config.items() if name != "store"},
        gates=[{"kind": "length", "max_ratio": 99.0}],
        registry={"model_name": MODEL},
        training={"iterations": 1},
    )
    for seed in (3, 4):
        (project / f"{seed}.yaml").write_text(yaml.safe_dump({**config, "name": f"run-{seed}", "seed": seed}))
        _shell(f"grpo train {seed}.yaml", project, environment)
    before = json.loads(_shell("grpo models --json", project, environment))
    key = KeyStore(project / "runs" / "keys.json").create("shop", ["chat"])

    try:
        printed = _shell(_commands(bucket, cluster), project, environment)
        assert f"champion of {MODEL}: version 2" in printed
        assert "2 versions are signed" in printed
        assert cluster.query("mlflow", "SELECT count(*) FROM model_versions") == [(2,)]
        assert cluster.query("mlflow", "SELECT count(*) FROM runs WHERE artifact_uri LIKE 'file:%'") == [(0,)]
        refused = subprocess.run(
            ["grpo", "models"], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2
        assert "the registry of this home was moved to postgresql://" in " ".join(refused.stderr.split())
        address = f"http://127.0.0.1:{environment['GRPO_SERVE_PORT']}"
        assert _chat(address, key)["choices"]

        exports = _shell("grpo env", project, environment)
        other = tmp_path / "other"
        other.mkdir()
        signing = (project / "runs" / "services" / "signing.key").read_text().strip()
        machine = f"{exports}\nexport GRPO_SIGNING_KEY={signing}\n"
        moved = yaml.safe_load((project / "4.yaml").read_text())
        (other / "4.yaml").write_text(yaml.safe_dump({**moved, "store": f"s3://{bucket}/artifacts"}))
        _shell(f"{machine} grpo train 4.yaml", other, environment)
        stages = read_report(other / "runs" / "run-4" / "report.json").stages
        assert [stage.name for stage in stages if stage.runs > stage.cached] == []
        assert json.loads(_shell(f"{machine} grpo models --json", other, environment)) == before
        shutil.copy2(project / "runs" / "stores.json", other / "runs")  # as the page says
        _shell(f"{machine} grpo evaluate 4.yaml --model models:/{MODEL}@champion", other, environment)
        _shell(f"{machine} grpo export models:/{MODEL}@champion exported", other, environment)
        assert (other / "exported" / "model.safetensors").is_file()
        printed = _shell(f"{machine} grpo rollback models:/{MODEL}@champion --reason worse", other, environment)
        assert "version 1 is champion" in printed
    finally:
        _shell("grpo down", project, environment)
