"""Prefect and MLflow on PostgreSQL, as several machines and runs at once need them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from grpo_local.login import CLIENT, PASSWORD, USERNAME
from tests.doubles import short_run
from tests.e2e.commands import Command, start
from tests.e2e.picture import draw
from tests.e2e.postgres import Cluster, postgres
from tests.e2e.served import LOGIN, basic, mlflow_service, prefect_service
from tests.places import ROOT

pytestmark = pytest.mark.e2e
RUNS = ("north", "south")
FIRST_USE = """
import multiprocessing, sys
from grpo.registry import Registry

def use(uri):
    print(Registry(uri).experiment("shared"), flush=True)

children = [multiprocessing.get_context("fork").Process(target=use, args=sys.argv[1:]) for _ in range(3)]
for child in children:
    child.start()
for child in children:
    child.join()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Both servers on one cluster, and what a run must know of them."""

    environment: dict[str, str]
    prefect: str
    mlflow: str
    home: Path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgres() as running:
        yield running


def _environment(home: Path) -> dict[str, str]:
    """Environment of every process here; no server yet."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "GRPO_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
    }


def _at_once(count: int, command: list[str], environment: dict[str, str]) -> list[subprocess.CompletedProcess[str]]:
    def start(_: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
        )

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


@pytest.fixture(scope="module")
def services(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Databases made by two `grpo migrate` at once, then a server on each."""
    home = tmp_path_factory.mktemp("postgres")
    records, models = cluster.database("prefect", driver="postgresql+asyncpg"), cluster.database("mlflow")
    own = {**_environment(home), "PREFECT_API_DATABASE_CONNECTION_URL": records}
    command = [sys.executable, "-m", "grpo_cli", "migrate"]
    for done in _at_once(2, command, {**own, "MLFLOW_TRACKING_URI": models}):
        assert done.returncode == 0, done.stdout + done.stderr
    with (
        prefect_service(home, own).shared() as prefect,
        mlflow_service(home, own, database=models).shared() as mlflow,
    ):
        told = {**_environment(home), "PREFECT_API_URL": prefect, CLIENT: LOGIN, "MLFLOW_TRACKING_URI": mlflow}
        told |= dict(zip((USERNAME, PASSWORD), basic(LOGIN), strict=True))
        yield Services(environment=told, prefect=prefect, mlflow=mlflow, home=home)


def _plan(name: str, services: Services, folder: Path, **sections: Any) -> Path:
    """A short run of the support desk; all of them share one store."""
    plan = short_run(services.home, name=name, registry={"model_name": f"desk-{name}"}, **sections)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    return path


def _train(config: Path, services: Services, label: str) -> Command:
    environment = {**services.environment, "GRPO_DEBUG": "1"}  # a line when a stage begins
    return start("train", str(config), environment=environment, output=config.with_name(f"{label}.txt"))


def _kill_at(beginning: str, times: int, command: Command) -> None:
    """Let the run say this line so often, then end it as a lost machine would."""
    seen: list[str] = []
    for said in command.lines():
        seen.append(said)
        if sum(one.startswith(beginning) for one in seen) == times:
            command.process.kill()
            command.process.join()
            return
    pytest.fail(f"{beginning!r} was said too seldom:\n{''.join(seen)}")


def _end(command: Command) -> None:
    code, printed = command.end()
    assert code in (0, 3), printed  # promoted or refused


@pytest.fixture(scope="module")
def reports(services: Services, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReportDocument]:
    """Results of two concurrent runs; the second was killed after one of two iterations, and started again."""
    folder = tmp_path_factory.mktemp("configs")
    north, south = _plan("north", services, folder), _plan("south", services, folder, seed=4)
    whole, killed = _train(north, services, "whole"), _train(south, services, "killed")
    _kill_at("rollout 0/", 2, killed)
    again = _train(south, services, "again")
    for command in (whole, again):
        _end(command)
    return {name: read_report(services.home / name / "report.json") for name in RUNS}


def _asked(services: Services, kind: str, **where: Any) -> list[dict[str, Any]]:
    """Rows of Prefect's server."""
    answer = httpx.post(f"{services.prefect}/{kind}/filter", json=where, timeout=60, auth=basic(LOGIN))
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()
    return found


def _artifacts(services: Services, name: str, state: str) -> dict[str, dict[str, Any]]:
    """The one run with this name and state on the server."""
    where = {"name": {"any_": [name]}, "state": {"type": {"any_": [state]}}}
    (run,) = _asked(services, "flow_runs", flow_runs=where)
    rows = _asked(services, "artifacts", artifacts={"flow_run_id": {"any_": [run["id"]]}})
    return {row["key"]: row for row in rows if row["type"] != "result"}


def test_three_processes_may_come_first(cluster: Cluster, tmp_path: Path):
    """An empty database that three runs use at once gets its tables once, and one experiment."""
    command = [sys.executable, "-c", FIRST_USE, cluster.database("empty")]
    (done,) = _at_once(1, command, _environment(tmp_path))
    assert done.stdout.split() == ["1", "1", "1"], done.stderr


def test_two_runs_at_once_end_with_a_version_each(
    services: Services, reports: dict[str, ReportDocument], monkeypatch: pytest.MonkeyPatch
):
    """Neither disturbs the other: each is registered under its own name, as the policy that it reports."""
    from mlflow import MlflowClient

    for variable in (USERNAME, PASSWORD):
        monkeypatch.setenv(variable, services.environment[variable])
    client = MlflowClient(services.mlflow)
    for name, report in reports.items():
        version = client.get_model_version_by_alias(f"desk-{name}", "candidate")
        assert version.tags["policy"] == report.lineage.candidate_policy
        assert version.tags["run_key"] == report.lineage.run
        assert client.get_run(version.run_id).info.status == "FINISHED"
    assert reports["north"].lineage.candidate_policy != reports["south"].lineage.candidate_policy


def test_a_killed_run_goes_on_from_its_cache(services: Services, reports: dict[str, ReportDocument]):
    """Its bar stands where it was killed; the same command takes the first iteration from the store."""
    assert _artifacts(services, "south", "RUNNING")["iterations"]["data"] == 50.0
    stages = {stage.name: stage for stage in reports["south"].stages}
    assert (stages["train"].cached, stages["train"].runs) == (1, 2)


def test_what_both_need_is_computed_once(reports: dict[str, ReportDocument]):
    """Stages with the same inputs run in one of them at most; other seeds are other weights."""
    stages = {name: {stage.name: stage for stage in report.stages} for name, report in reports.items()}
    for shared in ("ingest", "validate", "split", "load_base"):
        assert stages["south"][shared].cached == 1, shared
    assert stages["north"]["train"].cached == 0


@pytest.mark.usefixtures("reports")
def test_records_are_in_postgresql(cluster: Cluster, services: Services):
    """The rows are where a backup finds them, and no SQLite file was made beside."""
    rows = cluster.query("prefect", "SELECT state_type::text, count(*) FROM flow_run GROUP BY 1 ORDER BY 1")
    assert rows == [("COMPLETED", 2), ("RUNNING", 1)]  # a killed run is noticed by an automation, not by the database
    names = cluster.query("mlflow", "SELECT name FROM registered_models ORDER BY name")
    assert names == [("desk-north",), ("desk-south",)]
    assert not list(services.home.rglob("*.db"))


def test_the_server_shows_what_a_run_came_to(services: Services, reports: dict[str, ReportDocument]):
    """Decision, gates, stages, curves and a full bar of progress, with the numbers of the report."""
    report = reports["north"]
    shown = _artifacts(services, "north", "COMPLETED")
    assert set(shown) == {"decision", "gates", "stages", "curves", "iterations"}
    assert shown["decision"]["type"] == "markdown"
    assert f"north: {report.decision.verdict}" in shown["decision"]["data"]
    gates = yaml.safe_load(shown["gates"]["data"])
    assert [row["gate"] for row in gates] == [check.name for check in report.decision.checks]
    assert gates[0]["must be"] == "above 0"  # a cell is read as Markdown, in which a bare > is lost
    rows = {row["name"]: row for row in yaml.safe_load(shown["stages"]["data"])}
    assert rows["rollout"]["runs"] == 4  # 2 iterations, and 2 policies on the held-out side
    assert shown["curves"]["data"].startswith("data:image/png;base64,iVBOR")
    assert shown["iterations"]["type"] == "progress"
    assert shown["iterations"]["data"] == 100.0


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed: apt-get install chromium")
@pytest.mark.usefixtures("reports")
def test_the_page_shows_a_run_with_its_table_and_its_plot(services: Services, tmp_path: Path):
    """A real browser lists the artifacts and opens two; the page asks this server alone."""
    picture = draw(services.prefect, "north", tmp_path / "profile")
    assert len(picture.getcolors(256) or ()) > 50  # an empty page has a few


def test_a_backup_holds_the_registry(
    cluster: Cluster, services: Services, reports: dict[str, ReportDocument], monkeypatch: pytest.MonkeyPatch
):
    """Dumped and read back into an empty database, every model is there with its lineage and its aliases.

    It is believed in the home that has its key.
    """
    from grpo.registry import Registry

    monkeypatch.setenv("GRPO_HOME", str(services.home))
    restored = Registry(cluster.restore("mlflow", into="restored"))
    for name, report in reports.items():
        found = restored.find(f"desk-{name}", report.lineage.run)
        assert found is not None
        assert found.tags["policy"] == report.lineage.candidate_policy
        aliases = restored.client.get_model_version(found.name, str(found.version)).aliases
        assert ("champion" in aliases) == (report.decision.verdict == "promote")
