"""Moves of a registry from SQLite into a real PostgreSQL, and of its files into a bucket or a folder."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from grpo.errors import ConfigError
from grpo.policy.weights import registry_pages
from grpo.policy.weights.registered import open_client
from grpo.registry import Registry, move
from grpo.registry.move import move_registry
from tests.e2e.postgres import Cluster, postgres
from tests.grpo.registry.making import put_into_service, put_version
from tests.object_store import object_store

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgres() as running:
        yield running


@pytest.fixture
def database(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Address of an empty database, with a password, which this server does not ask for."""
    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    return cluster.database(name).replace("postgres@", "postgres:s3cret@")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A home with two promotions, a run with metrics and a file, an unsigned version and an experiment elsewhere."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "ein Haus"))
    (tmp_path / "ein Haus").mkdir()
    uri = f"sqlite:///{tmp_path}/ein Haus/mlflow.db"
    registry = Registry(uri, artifact_root=f"file://{tmp_path}/ein Haus/mlartifacts")
    run = registry.open_run("grpo", "first", run_key="k", params={"seed": "3", "name": "größer"})
    note = tmp_path / "note.txt"
    note.write_text("kept")
    registry.log_files(run, [note])
    registry.client.log_batch(
        run, metrics=[Metric("reward", value, 1, step) for step, value in enumerate((0.1, 1e-300))]
    )
    for key in ("a", "b"):
        put_into_service(registry, "desk", put_version(registry, "desk", key, against="base"))
    registry.client.create_model_version("desk", source="file:///data/model", run_id=run)
    elsewhere = registry.client.create_experiment("elsewhere", artifact_location=f"file://{tmp_path}/logs")
    registry.client.create_run(elsewhere)
    return registry


def _versions(client: MlflowClient) -> list[dict[str, Any]]:
    versions = client.search_model_versions("name = 'desk'")
    return sorted(
        (
            {"number": version.version, "tags": dict(version.tags), "aliases": list(version.aliases)}
            for version in versions
        ),
        key=lambda version: version["number"],
    )


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_versions_promotions_and_files_are_the_same_in_the_new_place(
    models: Registry, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Champion, history, tags and metrics; new rows get the next numbers; addresses name MLflow's server."""
    before, history = _versions(models.client), models.promotions("desk").history()
    files = _files(tmp_path / "ein Haus" / "mlartifacts")
    with object_store(monkeypatch, bucket="team"):
        moved = move_registry(database, "s3://team/mlflow")
        again = move_registry(database, "s3://team/mlflow")
        bucket = boto3.resource("s3").Bucket("team")
        assert {item.key.removeprefix("mlflow/"): item.get()["Body"].read() for item in bucket.objects.all()} == files
    assert (moved.champions, moved.versions, moved.unsigned) == ({"desk": 2}, 2, ("models:/desk/3",))
    assert (moved.written, again.written, again.present) == (len(files), 0, len(files))
    assert again.rows == moved.rows
    assert "s3cret" not in moved.model_dump_json()
    (stays,) = moved.elsewhere
    assert stays.startswith(f"file://{tmp_path}/logs/")

    new = Registry(database)
    assert _versions(new.client) == before
    assert new.promotions("desk").history() == history
    run = new.client.search_runs([new.client.get_experiment_by_name("grpo").experiment_id], "tags.run_key = 'k'")[0]
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/grpo/")
    assert run.data.params == {"seed": "3", "name": "größer"}
    assert [metric.value for metric in new.client.get_metric_history(run.info.run_id, "reward")] == [0.1, 1e-300]
    numbers = {int(experiment.experiment_id) for experiment in new.client.search_experiments()}
    assert int(new.client.create_experiment("later")) == max(numbers) + 1


def test_all_pages_of_a_registry_are_compared(
    models: Registry, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """3 models and 5 versions, two for each request: every champion, and every version that is not trusted."""
    monkeypatch.setattr(registry_pages, "PAGE", 2)
    for name in ("shop", "zoo"):
        put_into_service(models, name, put_version(models, name, name, against="base"))
    moved = move_registry(database, str(tmp_path / "files"))
    assert moved.champions == {"desk": 2, "shop": 1, "zoo": 1}
    assert (moved.versions, moved.unsigned) == (4, ("models:/desk/3",))


def test_the_old_registry_is_refused_until_its_record_is_removed(models: Registry, database: str, tmp_path: Path):
    """Otherwise a command without the new address would go on from the state before."""
    move_registry(database, str(tmp_path / "files"))
    assert _files(tmp_path / "files") == _files(tmp_path / "ein Haus" / "mlartifacts")
    with pytest.raises(ConfigError, match=r"was moved to postgresql://postgres:\*\*\*@.*Set MLFLOW_TRACKING_URI"):
        open_client(models.tracking_uri)
    (tmp_path / "ein Haus" / "registry.json").unlink()
    assert len(_versions(open_client(models.tracking_uri))) == 3


def test_a_database_with_other_records_is_refused(models: Registry, database: str, tmp_path: Path):
    """The registry in it stays as it is, and so does this one, also after both have gone on from one copy."""
    Registry(database).open_run("grpo", "of others", run_key="o", params={})
    with pytest.raises(ConfigError, match=r"has other records than.*Name an empty database"):
        move_registry(database, str(tmp_path / "files"))
    assert not (tmp_path / "files").exists()
    assert len(_versions(open_client(models.tracking_uri))) == 3


def test_an_interrupted_move_leaves_the_database_empty_and_is_repeated(
    models: Registry, cluster: Cluster, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is interrupted after a file was written, and then after some rows, before they are compared."""
    name, copy = database.rpartition("/")[2], move._digest_there
    calls: list[str] = []

    def interrupted(*arguments: Any) -> str | None:
        calls.append(arguments[1])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return copy(*arguments)

    with monkeypatch.context() as change:
        change.setattr(move, "_digest_there", interrupted)
        with pytest.raises(KeyboardInterrupt):
            move_registry(database, str(tmp_path / "files"))
    with monkeypatch.context() as change:
        change.setattr(move, "_continue_numbers", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            move_registry(database, str(tmp_path / "files"))
    assert cluster.query(name, "SELECT count(*) FROM runs") == [(0,)]
    assert move_registry(database, str(tmp_path / "files")).champions == {"desk": 2}


def test_a_text_that_postgresql_does_not_take_is_named_and_nothing_is_copied(
    models: Registry, cluster: Cluster, database: str, tmp_path: Path
):
    """SQLite does not bound the length of a text."""
    with closing(sqlite3.connect(tmp_path / "ein Haus" / "mlflow.db")) as connection, connection:
        connection.execute("UPDATE params SET value = ? WHERE key = 'seed'", ("9" * 9000,))
    with pytest.raises(Exception, match=r"cannot be copied into .*value too long.*The target is as it was"):
        move_registry(database, str(tmp_path / "files"))
    assert cluster.query(database.rpartition("/")[2], "SELECT count(*) FROM runs") == [(0,)]


def test_a_target_that_is_not_on_postgresql_is_refused(models: Registry, tmp_path: Path):
    """The variable is not set, so that it names the registry of the home itself."""
    with pytest.raises(ConfigError, match="Set it to the database that the registry moves to"):
        move_registry(models.tracking_uri, str(tmp_path / "files"))
