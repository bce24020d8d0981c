"""Updates on two nodes: this process is the first, and `grpo train-node` with its own home and process group the other.

Both are on this machine and use its loopback interface. On real machines the folder of the nodes is on a network file
system, and the network is another one.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError
from grpo.identity.code import source_digest
from grpo.learner import worker_group
from grpo.learner.checkpoints import read_state
from grpo.learner.distributed import ERROR, REQUEST, ErrorReport, UpdateRequest, check_devices, nodes_folder
from grpo.learner.metrics import UpdateMetrics
from grpo.learner.nodes import _is_over, follow, join
from grpo.learner.update import update
from grpo.learner.worker_group import WorkerLost
from grpo.policy.transformers.model import load
from tests.checkpoint_weights import share_of_the_step, weights
from tests.grpo.learner.conftest import BASE, DeskRollout
from tests.waiting import until

DIES_ONCE = """
import os, pathlib, signal, sys

def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "_padding_passes":
        pathlib.Path(os.environ["DIED"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)

if os.environ.get("RANK") == "1" and not os.path.exists(os.environ["DIED"]):
    sys.setprofile(watch)
"""


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the nodes, as the first node has it."""
    folder = tmp_path / "nodes"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("GRPO_NODES", str(folder))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return folder


def _update(desk: DeskRollout, target: Path, **settings: object) -> UpdateMetrics:
    plan = TrainingSettings(**{"learning_rate": 5e-4, **settings})  # type: ignore[arg-type]
    options = {"seed": 0, "iteration": 0, "base_artifact": BASE, "sources": source_digest()}
    return update([desk.scored], desk.base, desk.base, target, plan, **options).metrics  # type: ignore[arg-type]


@contextmanager
def _other_node(home: Path, **variables: str) -> Iterator[Path]:
    """`grpo train-node` with a home of its own, in its own process group. Yields the file of what it prints."""
    home.mkdir()
    log = home / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "grpo_cli", "train-node"],
            cwd=home,
            env={**os.environ, "GRPO_HOME": str(home), **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(timeout=240)


def test_a_killed_process_of_another_node_is_a_repeated_update(desk_rollout: DeskRollout, nodes: Path, tmp_path: Path):
    """The other node comes late, and its process dies in the first update: nothing is written, and `WorkerLost` is
    what a stage retries. The same nodes then reach the weights of one process, and leave no folder.
    """
    (tmp_path / "sitecustomize.py").write_text(DIES_ONCE)
    settings = {"nodes": 2, "sharding": "sharded"}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(_update, desk_rollout, tmp_path / "two", **settings)
        until("the update has begun", lambda: list(nodes.glob(f"update-*/{REQUEST}")), patience_s=240)
        with _other_node(tmp_path / "home", PYTHONPATH=str(tmp_path), DIED=str(tmp_path / "died")) as log:
            with pytest.raises(WorkerLost, match=r"one of 2 training processes died.*the checkpoint .* is unchanged"):
                first.result()
            assert (tmp_path / "died").exists()
            assert not (tmp_path / "two" / "learner.json").exists()
            shared = _update(desk_rollout, tmp_path / "two", **settings)
            until("the other node has noticed", lambda: log.read_text().count(": joining") == 2, patience_s=240)
    alone = _update(desk_rollout, tmp_path / "one")
    one, two, start = weights(tmp_path / "one"), weights(tmp_path / "two"), weights(desk_rollout.base)
    assert share_of_the_step(one, two, start) < 3e-4
    assert shared.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-4)
    assert read_state(tmp_path / "two").policy_hash == load(tmp_path / "two").hash
    assert list(nodes.iterdir()) == []


def test_nodes_that_do_not_come_are_named(
    desk_rollout: DeskRollout, nodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One of two: after the time to join, the message says what to start and where."""
    monkeypatch.setattr(worker_group, "_JOIN_S", 2)
    with pytest.raises(WorkerLost) as lost:
        _update(desk_rollout, tmp_path / "x", nodes=2)
    assert str(lost.value) == (
        "not all of 2 nodes joined the update within 2 s (training.nodes). Start `grpo train-node` on each other node, "
        f"with GRPO_NODES={nodes}. The checkpoint {desk_rollout.base} is unchanged"
    )


def _request(desk: DeskRollout, nodes: Path, **changes: object) -> Path:
    """Folder of an update of two nodes."""
    settings = TrainingSettings(nodes=2)
    request = UpdateRequest(
        scored=(desk.scored,),
        parent=desk.base,
        base=desk.base,
        target=nodes / "target",
        settings=settings,
        seed=0,
        iteration=0,
        base_artifact=None,
        sources=source_digest(),
    )
    folder = nodes / "update-1"
    folder.mkdir()
    (folder / REQUEST).write_text(request.model_copy(update=changes).model_dump_json())
    return folder


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sources": "other"}, "this node has other sources of grpo than the first node. Install the same version"),
        (
            {"parent": Path("/absent")},
            "/absent does not exist on this node. Set store to a folder that all nodes see at the same",
        ),
    ],
)
def test_a_node_that_cannot_take_part_says_why(
    desk_rollout: DeskRollout, nodes: Path, changes: dict[str, object], reason: str
):
    """Other sources, or a store that is not mounted: it starts nothing, and reports to the first node."""
    folder = _request(desk_rollout, nodes, **changes)
    lines = follow(nodes, sources=source_digest())
    assert next(lines) == "update-1: joining"
    assert next(lines).startswith(f"update-1: refused: {reason}")
    report = ErrorReport.model_validate_json((folder / ERROR).read_bytes())
    assert report.kind == "ConfigError"
    assert report.message.startswith("node ")
    assert reason in report.message


def test_a_network_disk_that_fails_for_a_moment_ends_no_node(
    desk_rollout: DeskRollout, nodes: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a look for updates, and when a request is read. The node is there for the next update."""
    folder = _request(desk_rollout, nodes, sources="other")

    def fails(call: Any) -> Any:
        failing = [OSError(errno.EIO, "Input/output error")]

        def fail_first(path: Path, *arguments: Any) -> Any:
            if failing and path in (nodes, folder / REQUEST):
                raise failing.pop()
            return call(path, *arguments)

        return fail_first

    monkeypatch.setattr(Path, "glob", fails(Path.glob))
    monkeypatch.setattr(Path, "read_bytes", fails(Path.read_bytes))
    monkeypatch.setattr("grpo.learner.nodes._POLL_S", 0.0)
    lines = follow(nodes, sources=source_digest())
    assert next(lines) == f"{nodes} is tried again: [Errno 5] Input/output error"
    assert next(lines).startswith("update-1: refused: this node has other sources")
    assert (folder / ERROR).exists()


@pytest.mark.parametrize(("number", "is_over"), [(errno.ENOENT, True), (errno.ESTALE, True), (errno.EIO, False)])
def test_an_update_is_over_when_its_folder_is_removed(
    nodes: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_over: bool
):
    """A network disk may say that the handle of a removed folder is stale. Any other error may pass."""

    def fail(path: Path) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(Path, "stat", fail)
    assert _is_over(nodes / "update-1") is is_over


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            '{"sources": "other", "settings": {"a_new_setting": 1}}',
            "this node has other sources of grpo than the first node",
        ),
        ('{"sources": "ours"', "request.json of the update is damaged"),
        ("[" * 100_000, "request.json of the update is damaged"),
    ],
)
def test_a_request_that_this_version_cannot_read_is_answered(nodes: Path, document: str, reason: str):
    """Another version has other settings: the node says so to the first one, and waits for the next update."""
    folder = nodes / "update-1"
    folder.mkdir()
    (folder / REQUEST).write_text(document)
    assert join(folder, sources="ours").startswith(f"refused: {reason}")
    assert reason in ErrorReport.model_validate_json((folder / ERROR).read_bytes()).message


def test_the_first_node_ends_with_the_reason_of_another(desk_rollout: DeskRollout, nodes: Path, tmp_path: Path):
    """It does not wait for the time to join, which is ten minutes."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(_update, desk_rollout, tmp_path / "x", nodes=2)
        (request,) = until("the update has begun", lambda: list(nodes.glob(f"*/{REQUEST}")), patience_s=240)
        report = ErrorReport(kind="ConfigError", message="node b: no store")
        request.with_name(ERROR).write_text(report.model_dump_json())
        with pytest.raises(ConfigError, match=r"^node b: no store$"):
            first.result(timeout=240)


def test_an_update_that_is_over_is_not_joined(nodes: Path):
    """Its folder was removed between the search and the look into it."""
    assert join(nodes / "update-2", sources="s") == "over before this node joined"


def test_nodes_need_a_private_folder_and_a_named_network(nodes: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither has a default, because nodes run what lies in the folder, and their connections ask for no login."""
    assert nodes_folder() == nodes
    nodes.chmod(0o770)
    with pytest.raises(ConfigError, match=r"which others can write to.*chmod 700"):
        nodes_folder()
    nodes.rmdir()
    with pytest.raises(ConfigError, match="is not a folder"):
        nodes_folder()
    monkeypatch.delenv("GRPO_NODES")
    with pytest.raises(ConfigError, match=r"training.nodes needs GRPO_NODES"):
        nodes_folder()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    with pytest.raises(ConfigError, match=r"^GLOO_SOCKET_IFNAME is not set, so training.nodes 2 would use any network"):
        check_devices(TrainingSettings(nodes=2))
    check_devices(TrainingSettings())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    with pytest.raises(ConfigError, match=r"^NCCL_SOCKET_IFNAME is not set"):
        check_devices(TrainingSettings(nodes=2))
