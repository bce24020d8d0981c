from __future__ import annotations

from pathlib import Path

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import ArtifactError, RemovedError
from grpo.registry.retention import REGISTERED, Retention, run_owner


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path))


def _checkpoint(store: ArtifactStore, content: str) -> Artifact:
    with store.new_folder("checkpoint") as new:
        (new.path / "weights").write_text(content)
    return new.artifact


def test_a_checkpoint_is_removed_with_its_last_reference(store: ArtifactStore):
    """Two runs share one: the first to let it go removes nothing."""
    retention, checkpoint = Retention(store), _checkpoint(store, "x")
    retention.keep(checkpoint, run_owner("a"))
    retention.keep(checkpoint, run_owner("b"))
    assert not retention.release(checkpoint, run_owner("a"))
    assert (store.path(checkpoint) / "weights").read_text() == "x"
    assert retention.release(checkpoint, run_owner("b"))
    assert not (Path(store.root) / "checkpoint").exists() or not list((Path(store.root) / "checkpoint").iterdir())


def test_checkpoints_of_registered_versions_are_never_removed(store: ArtifactStore):
    """The run that made it lets it go."""
    retention, checkpoint = Retention(store), _checkpoint(store, "x")
    retention.keep(checkpoint, run_owner("a"))
    retention.keep(checkpoint, REGISTERED)
    assert not retention.release(checkpoint, run_owner("a"))
    store.verify(checkpoint)
    assert retention.kept(REGISTERED) == [checkpoint]
    assert retention.kept(run_owner("a")) == []


def test_a_removed_checkpoint_is_not_a_missing_one(store: ArtifactStore):
    """It passes where it is only named; to open it is an error of its own, and it can be made again."""
    retention, checkpoint = Retention(store), _checkpoint(store, "x")
    retention.keep(checkpoint, "a")
    retention.release(checkpoint, "a")
    store.verify(checkpoint)
    with pytest.raises(RemovedError, match="was removed, because no run or version references it"):
        store.path(checkpoint)
    store.forget_removal(checkpoint)
    with pytest.raises(ArtifactError, match="is missing"):
        store.verify(checkpoint)
    assert _checkpoint(store, "x") == checkpoint
    store.verify(checkpoint)


def test_a_recomputed_checkpoint_can_be_removed_again(store: ArtifactStore):
    """The record of the first removal does not keep it."""
    retention = Retention(store)
    for _ in range(2):
        checkpoint = _checkpoint(store, "x")
        retention.keep(checkpoint, "a")
        assert retention.release(checkpoint, "a")
    assert not retention.release(checkpoint, "a")
