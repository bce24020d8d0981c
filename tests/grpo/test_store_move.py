"""Moves of a store between folders and an object store, with damage, interruptions and runs in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from grpo import store_move
from grpo.artifacts import Artifact, ArtifactStore, store_of
from grpo.errors import ConfigError, StorageError
from grpo.registry.retention import Retention
from grpo.storage.moved_stores import present_address
from grpo.store_move import move_store, sign_store
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage
from tests.doubles import put_file, put_folder
from tests.object_store import object_store

BUCKET = "s3://grpo/artifacts"
runs: list[str] = []


class Made(StageResult):
    """A file and a folder."""

    file: Artifact
    folder: Artifact


@stage
def make(name: str, store: str) -> Made:
    """Write a file and a folder of this name, and count the call."""
    runs.append(name)
    artifacts = ArtifactStore(store)
    return Made(
        file=put_file(artifacts, "split", ".json", lambda path: path.write_text(name)),
        folder=put_folder(artifacts, "checkpoint", lambda path: _fill(path, name)),
    )


def _fill(folder: Path, name: str) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "weights.bin").write_bytes(name.encode() * 100)
    (folder / "state.json").write_text("{}")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, as stores.json is in it."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    runs.clear()
    return tmp_path / "home"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as environment, object_store(environment) as url:
        yield url


@pytest.fixture(params=["folder", "bucket"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty store."""
    if request.param == "folder":
        return str(tmp_path / "moved" / "artifacts")
    request.getfixturevalue("server")
    boto3.resource("s3").Bucket("grpo").objects.all().delete()
    return BUCKET


def full(folder: Path) -> tuple[str, Made]:
    """A store with results, a reference, a removed artifact and a file of somebody."""
    store = ArtifactStore(str(folder / "artifacts"))
    made = make.fn("one", store=store.uri)
    make.fn("two", store=store.uri)
    Retention(store).keep(made.folder, "registered")
    gone = put_folder(store, "checkpoint", lambda path: _fill(path, "gone"))
    store.remove(gone)
    (Path(store.root) / "notes.txt").write_text("mine")
    return store.uri, made


def test_nothing_is_computed_twice_and_every_record_is_there(tmp_path: Path, target: str):
    """Results, a checkpoint of a version by its old address, a reference and a removal; the old store is empty."""
    source, made = full(tmp_path)
    moved = move_store(source, target)
    assert (moved.artifacts, moved.present, moved.documents, moved.damaged, moved.left) == (
        *(4, 0, 4, ()),
        ("notes.txt",),
    )
    assert [path.name for path in Path(source).rglob("*")] == ["notes.txt"]
    again = make.fn("one", store=target)
    assert (runs, again.folder.sha256) == (["one", "two"], made.folder.sha256)
    new = ArtifactStore(target)
    assert store_of(made.folder).uri == new.uri == present_address(source)
    assert (new.path(made.folder) / "inner" / "weights.bin").read_bytes() == b"one" * 100
    assert [kept.uri for kept in Retention(new).kept("registered")] == [new.own(made.folder).uri]
    assert len(new.documents.names("removed")) == 1


def test_a_move_back_is_one_as_well(tmp_path: Path, target: str):
    """From a bucket to a folder; the old address is itself again."""
    source, made = full(tmp_path)
    move_store(source, target)
    move_store(target, source)
    assert present_address(source) == source
    assert store_of(made.folder).uri == source
    make.fn("one", store=source)
    assert runs == ["one", "two"]


def test_a_dry_run_and_keep_leave_the_source(tmp_path: Path, target: str):
    """A dry run writes nothing; what is there already is counted, and not written again."""
    source, _ = full(tmp_path)
    before = sorted(Path(source).rglob("*"))
    planned = move_store(source, target, dry_run=True)
    assert (planned.artifacts, planned.documents) == (4, 4)
    assert present_address(source) == source
    assert ArtifactStore(target).documents.names("results") == []
    assert move_store(source, target, keep=True).artifacts == 4
    assert (move_store(source, target, keep=True).artifacts, sorted(Path(source).rglob("*"))) == (0, before)


def test_what_is_damaged_stays_and_is_computed_again(tmp_path: Path, target: str):
    """A weight that was changed, a folder without a manifest, and a result that was edited."""
    source, made = full(tmp_path)
    store = ArtifactStore(source)
    (store.path(made.folder) / "inner" / "weights.bin").write_bytes(b"other")
    (Path(source) / "checkpoint" / ("0" * 20)).mkdir()
    (Path(source) / "checkpoint" / ("0" * 20) / "x").write_text("x")
    result = Path(f"{source}/{store.documents.names('results')[0]}.json")
    result.write_text(result.read_text(encoding="utf-8").replace('"compute_s":', '"compute_s": 1'), encoding="utf-8")
    moved = move_store(source, target)
    assert len(moved.damaged) == 3
    assert all((Path(source) / name).exists() or (Path(source) / f"{name}.json").exists() for name in moved.damaged)
    make.fn("one", store=target)
    make.fn("two", store=target)
    assert len(runs) in (3, 4)  # the edited result is that of either


@pytest.mark.parametrize("at", range(4))
def test_an_interrupted_move_is_repeated(tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch, at: int):
    """Nothing of the source is removed before the target has everything, and nothing is written twice."""
    source, _ = full(tmp_path)
    before = sorted(Path(source).rglob("*"))
    copy, copies = store_move._Mover._copy, 0

    def die(self: store_move._Mover, artifact: Artifact, path: Path) -> None:
        nonlocal copies
        if copies == at:
            raise KeyboardInterrupt
        copies += 1
        copy(self, artifact, path)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(store_move._Mover, "_copy", die)
        with pytest.raises(KeyboardInterrupt):
            move_store(source, target)
    assert sorted(Path(source).rglob("*")) == before
    moved = move_store(source, target)
    assert (moved.present, moved.artifacts) == (at, 4 - at)


def test_a_move_that_was_killed_while_it_removed_is_completed(tmp_path: Path, target: str):
    """An artifact lacks its manifest in the source then, and is whole in the target. A third move has nothing to do."""
    source, made = full(tmp_path)
    move_store(source, target, keep=True)
    (ArtifactStore(source).path(made.folder) / "manifest.json").unlink()
    moved = move_store(source, target)
    assert (moved.artifacts, moved.present, moved.damaged) == (0, 4, ())
    assert [path.name for path in Path(source).rglob("*")] == ["notes.txt"]
    (Path(source) / "notes.txt").unlink()
    moved = move_store(source, target)
    assert (moved.artifacts, moved.present, moved.documents) == (0, 0, 0)
    with pytest.raises(ConfigError, match=f"Its content was moved to {target}"):
        move_store(source, str(tmp_path / "elsewhere"))


def test_a_second_move_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It would otherwise miss what the first one removes, and name its own target as the new place of all."""
    source, _ = full(tmp_path)
    (Path(source) / "notes.txt").unlink()
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    document, errors = store_move._Mover.document, list[BaseException]()

    def move() -> None:
        try:
            move_store(source, second)
        except ConfigError as error:
            errors.append(error)

    other = threading.Thread(target=move)

    def with_another(self: store_move._Mover, name: str) -> None:
        if other.ident is None:
            other.start()
            other.join(1)
        document(self, name)

    monkeypatch.setattr(store_move._Mover, "document", with_another)
    assert move_store(source, first).artifacts == 4
    other.join()
    assert [f"Its content was moved to {first}" in str(error) for error in errors] == [True]
    assert present_address(source) == first


def test_a_run_that_writes_meanwhile_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What appears after the listing is moved as well; a store that is written all the time is refused, and stays."""
    source, _ = full(tmp_path)
    document, written = store_move._Mover.document, 0

    def writing(self: store_move._Mover, name: str) -> None:
        nonlocal written
        document(self, name)
        if written < most:
            written += 1
            make.fn(f"late {written}", store=place)

    monkeypatch.setattr(store_move._Mover, "document", writing)
    most, place = 1, source
    assert move_store(source, str(tmp_path / "second")).artifacts == 6
    most, place = 1000, str(tmp_path / "second")
    with pytest.raises(StorageError, match="something writes to"):
        move_store(place, str(tmp_path / "third"))
    assert make.find({"name": "late 1", "store": str(tmp_path / "second")}) is not None


@pytest.mark.parametrize("inner", ["artifacts", "artifacts/below", "."])
def test_two_names_of_one_place_are_refused(tmp_path: Path, inner: str):
    """A move into itself would remove what it copied."""
    source, _ = full(tmp_path)
    with pytest.raises(ConfigError, match="contain each other"):
        move_store(source, str(tmp_path / inner))


def test_a_store_that_is_not_there_is_refused(tmp_path: Path, target: str):
    """With the remedy; a typing error does not pass as an empty store."""
    with pytest.raises(ConfigError, match="there is no store at"):
        move_store(str(tmp_path / "missing"), target)
    with pytest.raises(ConfigError, match="there is no store at"):
        sign_store(str(tmp_path / "missing"))
    assert list(tmp_path.iterdir()) == []  # neither the home nor its lock


def test_a_home_that_names_no_move_finds_nothing_elsewhere(home: Path):
    """The record is one of this home; moves in a circle end."""
    assert present_address("/old") == "/old"
    home.mkdir()
    (home / "stores.json").write_text(json.dumps({"/a": "/b", "/b": "/a"}))
    assert present_address("/a") in ("/a", "/b")
