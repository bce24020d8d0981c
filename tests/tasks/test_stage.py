from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
from prefect.states import State, StateType

from grpo.artifacts import Artifact
from grpo.code import code_digest, source_digest
from grpo.config.rewards import RewardComponent
from grpo.errors import GRPOError, NoEffect
from grpo.rewards.rubrics import RUBRICS
from tasks.identity import identity, stage_key
from tasks.locks import FlockLockManager
from tasks.stage import is_transient

HERE = Artifact(uri="/a/x", sha256="abc", kind="rollout")


def test_an_artifact_is_its_content_wherever_it_lies():
    """Another address of the same bytes is the same input; other bytes are not."""
    moved = HERE.model_copy(update={"uri": "/b/x"})
    other = HERE.model_copy(update={"sha256": "abd"})
    assert stage_key("score", {"rollout": HERE}) == stage_key("score", {"rollout": moved})
    assert stage_key("score", {"rollout": HERE}) != stage_key("score", {"rollout": other})


def test_every_input_but_the_stores_address_is_part_of_the_identity():
    """Name, numbers and nested settings count; `store` does not."""
    reward = (RewardComponent(kind="checks", weight=0.3),)
    key = stage_key("score", {"reward": reward, "seed": 1, "store": "a"})
    assert key == stage_key("score", {"reward": reward, "seed": 1, "store": "b"})
    assert key != stage_key("score", {"reward": reward, "seed": 2, "store": "a"})
    assert key != stage_key("rollout", {"reward": reward, "seed": 1, "store": "a"})
    heavier = (RewardComponent(kind="checks", weight=0.4),)
    assert key != stage_key("score", {"reward": heavier, "seed": 1, "store": "a"})


def test_the_code_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch):
    """A change inside grpo recomputes: the digest of the sources stands in the key."""
    before = stage_key("score", {"seed": 1})
    monkeypatch.setattr("tasks.identity.code_digest", lambda: "other")
    assert stage_key("score", {"seed": 1}) != before


def test_a_changed_rubric_is_part_of_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its name stands in the config, its words do not: one word more is another digest."""
    shutil.copytree(RUBRICS, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr("grpo.code.RUBRICS", tmp_path)
    before = source_digest.__wrapped__()
    with (tmp_path / "sales.yaml").open("a") as file:
        file.write("# another word\n")
    assert source_digest.__wrapped__() != before


def test_the_digest_of_the_code_holds_that_of_the_sources(monkeypatch: pytest.MonkeyPatch):
    """Other sources with the same packages are another code."""
    before = code_digest.__wrapped__()
    monkeypatch.setattr("grpo.code.source_digest", lambda: "other")
    assert code_digest.__wrapped__() != before


def test_what_has_no_order_cannot_be_an_identity():
    """A set hashes differently in every process, so it is refused."""
    with pytest.raises(TypeError, match="set cannot be part"):
        identity({"a": {1, 2}})


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConnectionError("reset"), True),
        (ConnectionResetError("peer"), True),
        (TimeoutError("slow"), True),
        (BrokenExecutor("worker died"), True),
        (GRPOError("bad"), False),
        (NoEffect("none"), False),
        (ValueError("bug"), False),
    ],
)
def test_only_what_a_second_try_can_mend_is_retried(error: Exception, again: bool):
    """Lost connections and workers are; an error of ours or in the code is not."""
    state: State[object] = State(type=StateType.FAILED, data=error)
    assert is_transient(None, None, state) is again  # type: ignore[arg-type]


def _hold(folder: Path, ready: str) -> None:
    manager = FlockLockManager(lambda: folder)
    manager.acquire_lock("key", "other")
    Path(ready).touch()
    time.sleep(60)


def test_a_lock_dies_with_its_holder(tmp_path: Path):
    """Held by another process it is taken; after kill -9 it is free at once."""
    manager = FlockLockManager(lambda: tmp_path)
    ready = tmp_path / "ready"
    holder = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path, str(ready)))
    holder.start()
    while not ready.exists():
        time.sleep(0.02)
    assert manager.is_locked("key")
    assert not manager.acquire_lock("key", "me", acquire_timeout=0.1)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert manager.acquire_lock("key", "me", acquire_timeout=5)
    assert manager.is_lock_holder("key", "me")
    manager.release_lock("key", "me")
    assert not manager.is_locked("key")


def test_one_holder_does_not_wait_for_itself_and_another_does(tmp_path: Path):
    """Taken twice by one, refused to a second, released only by the first."""
    manager = FlockLockManager(lambda: tmp_path)
    assert manager.acquire_lock("key", "a")
    assert manager.acquire_lock("key", "a")
    assert not manager.acquire_lock("key", "b", acquire_timeout=0)
    with pytest.raises(ValueError, match="no lock held by b"):
        manager.release_lock("key", "b")
