from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from grpo.artifacts import Artifact, store_of
from grpo.errors import ArtifactError, ConfigError
from grpo.policy.weights.registered import open_client
from grpo.registry.store import Registry
from grpo.storage.databases import exclusive
from grpo.storage.moved import former_homes, former_place, missing_models, rewrite_places
from tests.doubles import put_file


def _registry(home: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("GRPO_HOME", str(home))
    return Registry(f"sqlite:///{home}/mlflow.db", artifact_root=f"file://{home}/mlartifacts")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a run that has a file, and an experiment that a user put elsewhere."""
    home = tmp_path / "old" / "ein Haus"
    home.mkdir(parents=True)
    models = _registry(home, monkeypatch)
    note = tmp_path / "note.txt"
    note.write_text("kept")
    models.log_files(models.open_run("grpo", "first", run_key="k", params={}), [note])
    models.client.create_experiment("elsewhere", artifact_location=f"file://{tmp_path}/logs")
    return home


def _locations(home: Path) -> dict[str, str]:
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        return dict(database.execute("SELECT name, artifact_location FROM experiments WHERE name != 'Default'"))


def _files(models: Registry) -> list[str]:
    run = models.open_run("grpo", "first", run_key="k", params={})
    return [file.path for file in models.client.list_artifacts(run)]


@pytest.mark.parametrize("way", ["renamed", "parent renamed", "copied"])
def test_a_home_in_another_place_is_refused_and_then_works(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
):
    """Opening it raises; afterwards files are found and written below the new place, and none in the old one."""
    new = {"renamed": home.with_name("neu"), "parent renamed": tmp_path / "new" / home.name}.get(way, tmp_path / "copy")
    if way == "copied":
        shutil.copytree(home, new)
        before = _locations(home)
    else:
        (home if way == "renamed" else home.parent).rename(new if way == "renamed" else new.parent)
    models = _registry(new, monkeypatch)
    with pytest.raises(ConfigError, match=f"was moved or copied from {home} to {new}.*Call `grpo migrate --moved`"):
        open_client(models.tracking_uri)
    with exclusive(models.tracking_uri):
        assert rewrite_places(new / "mlflow.db") == [home]
    assert _locations(new) == {"grpo": f"file://{new}/mlartifacts/grpo", "elsewhere": f"file://{tmp_path}/logs"}
    assert _files(models) == ["note.txt"]
    assert models.client.get_run(models.open_run("grpo", "later", run_key="l", params={})).info.artifact_uri.startswith(
        f"file://{new}/mlartifacts/grpo/"
    )
    assert former_homes() == [str(home)]
    if way == "copied":
        assert _locations(home) == before
    else:
        assert not home.exists()


def test_a_home_that_stays_or_is_reached_by_a_link_was_not_moved(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A link to it, and its first place as a link to where it is now."""
    (tmp_path / "link").symlink_to(home)
    assert _files(_registry(tmp_path / "link", monkeypatch)) == ["note.txt"]
    home.rename(tmp_path / "moved")
    home.symlink_to(tmp_path / "moved")
    assert _files(_registry(tmp_path / "moved", monkeypatch)) == ["note.txt"]
    assert rewrite_places(tmp_path / "moved" / "mlflow.db") == []


def test_experiments_made_on_a_page_are_of_the_home_too(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """MLflow's server writes an encoded address that ends in the experiment's id."""
    models = _registry(home, monkeypatch)
    number = models.client.create_experiment("by hand")
    with closing(sqlite3.connect(home / "mlflow.db")) as database, database:
        location = f"{(home / 'mlartifacts').as_uri()}/{number}"
        database.execute("UPDATE experiments SET artifact_location = ? WHERE name = 'by hand'", (location,))
    home.rename(tmp_path / "moved")
    _registry(tmp_path / "moved", monkeypatch)
    rewrite_places(tmp_path / "moved" / "mlflow.db")
    assert _locations(tmp_path / "moved")["by hand"] == f"file://{tmp_path}/moved/mlartifacts/{number}"


def test_a_database_that_is_not_the_homes_is_left_alone(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Several homes may share one; a missing or empty one names no place."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "other"))
    assert open_client(f"sqlite:///{home}/mlflow.db").get_experiment_by_name("grpo") is not None
    (tmp_path / "other").mkdir()
    assert former_place(tmp_path / "other" / "mlflow.db") is None
    (tmp_path / "other" / "mlflow.db").touch()
    assert former_place(tmp_path / "other" / "mlflow.db") is None


def test_models_whose_files_were_written_to_the_old_place_are_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """So that they can be copied."""
    models = _registry(home, monkeypatch)
    run = models.open_run("grpo", "first", run_key="k", params={})
    number = str(models.client.get_run(run).info.experiment_id)
    logged = models.client.create_logged_model(number, name="model", source_run_id=run)
    home.rename(tmp_path / "moved")
    _registry(tmp_path / "moved", monkeypatch)
    rewrite_places(tmp_path / "moved" / "mlflow.db")
    place = tmp_path / "moved" / "mlartifacts" / "grpo" / "models" / logged.model_id / "artifacts"
    assert missing_models(tmp_path / "moved" / "mlflow.db") == [f"file://{place}"]
    place.mkdir(parents=True)
    assert missing_models(tmp_path / "moved" / "mlflow.db") == []


@pytest.mark.parametrize("place", ["ein Haus/artifacts", "ein Haus/mine", "beside"])
def test_an_artifact_is_found_by_its_digest_in_the_place_that_its_store_has_now(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    """A store in the home or beside it moves along, also where a file of the same name lies in the old place."""
    from grpo.artifacts import ArtifactStore

    monkeypatch.setenv("GRPO_HOME", str(home))
    text = put_file(ArtifactStore(str(home.parent / place)), "text", ".txt", lambda path: path.write_text("a"))
    home.parent.rename(tmp_path / "new")
    Path(text.uri).parent.mkdir(parents=True)
    Path(text.uri).write_text("a decoy", encoding="utf-8")
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "new" / home.name))
    rewrite_places(tmp_path / "new" / home.name / "mlflow.db")
    assert store_of(text).path(text) == tmp_path / "new" / place / os.path.relpath(text.uri, home.parent / place)
    assert ArtifactStore(str(tmp_path / "new" / place)).path(text).read_text() == "a"
    other = Artifact(uri=text.uri, sha256="0" * 64, kind="text")
    with pytest.raises(ArtifactError, match="is damaged"):
        store_of(other).path(other)
