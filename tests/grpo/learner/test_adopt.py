from __future__ import annotations

from pathlib import Path

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import ArtifactError
from grpo.learner.checkpoints import STATE, CheckpointState, adopt_checkpoint, read_state
from grpo.policy.transformers.exactness import PathCheck
from tests.doubles import put_folder


def _checkpoint(store: ArtifactStore, base: Artifact | None = None) -> Artifact:
    check = PathCheck(path="flat", attention="grpo_flat", logprob_error=0.0, gradient_error=0.0)
    state = CheckpointState(policy_hash="p", base=base, path_check=check)

    def write(folder: Path) -> None:
        (folder / STATE).write_text(state.model_dump_json())
        (folder / "weights").write_bytes(b"base" if base is None else b"adapters")

    return put_folder(store, "checkpoint", write)


def test_a_checkpoint_of_another_store_is_copied_with_the_base_of_its_adapters(tmp_path: Path):
    """With the same digests, so that it is found when the other store is gone; one that is there is left alone."""
    first, second = ArtifactStore(str(tmp_path / "first")), ArtifactStore(str(tmp_path / "second"))
    checkpoint = _checkpoint(first, _checkpoint(first))
    adopted = adopt_checkpoint(second, checkpoint)
    assert adopted == second.folder("checkpoint", checkpoint.sha256)
    (tmp_path / "first").rename(tmp_path / "gone")
    assert adopt_checkpoint(second, checkpoint) == adopted
    base = read_state(second.path(adopted)).base
    assert base is not None
    assert (second.path(base) / "weights").read_bytes() == b"base"
    with pytest.raises(ArtifactError, match=r"/gone-too/.* is missing"):
        adopt_checkpoint(second, Artifact(uri=f"{tmp_path}/gone-too/checkpoint/00", sha256="00", kind="checkpoint"))
