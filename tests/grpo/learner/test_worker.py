"""Worker of an update, run here as a process group of one: its metrics and error reports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from threading import Event
from traceback import FrameSummary

import psutil
import pytest
import torch
from torch import distributed

from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError
from grpo.learner import worker, worker_group
from grpo.learner.checkpoints import read_state
from grpo.learner.distributed import ERROR, METRICS, ErrorReport, UpdateRequest, check_devices
from grpo.learner.metrics import UpdateMetrics
from grpo.learner.update import update
from grpo.learner.worker import main
from grpo.learner.worker_group import WorkerFailed, WorkerGroup, idle_group, kill_tree, process_key, run_workers
from tests.grpo.learner.conftest import BASE, DeskRollout
from tests.places import ROOT
from tests.processes import each, family, listening


def _request(desk: DeskRollout, target: Path, **settings: object) -> UpdateRequest:
    return UpdateRequest(
        scored=(desk.scored,),
        parent=desk.base,
        base=desk.base,
        target=target,
        settings=TrainingSettings(**{"learning_rate": 5e-4, **settings}),  # type: ignore[arg-type]
        seed=4,
        iteration=0,
        base_artifact=BASE,
    )


@pytest.fixture
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment of torchrun for rank 0 of 1; the exception hook is restored afterwards."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.mark.usefixtures("rendezvous")
def test_a_worker_runs_its_request_and_writes_the_metrics(desk_rollout: DeskRollout, tmp_path: Path):
    """Weights, metrics and base of the adapters are those of the same update without a worker."""
    alone = update(
        [desk_rollout.scored],
        desk_rollout.base,
        desk_rollout.base,
        tmp_path / "alone",
        TrainingSettings(learning_rate=5e-4, lora={"r": 2}),  # type: ignore[arg-type]
        seed=4,
        iteration=0,
        base_artifact=BASE,
    ).metrics
    request = _request(desk_rollout, tmp_path / "requested", lora={"r": 2})
    (tmp_path / "request.json").write_text(request.model_dump_json())
    main(tmp_path / "request.json", os.getpid(), once=True)
    metrics = UpdateMetrics.model_validate_json((tmp_path / METRICS).read_bytes())
    assert metrics.model_copy(update={"tokens_per_s": 0.0}) == alone.model_copy(update={"tokens_per_s": 0.0})
    assert read_state(tmp_path / "requested") == read_state(tmp_path / "alone")
    assert not distributed.is_initialized()
    assert not (tmp_path / ERROR).exists()


@pytest.mark.usefixtures("rendezvous")
@pytest.mark.parametrize("before", [False, True], ids=["alone", "after another process"])
def test_the_first_error_of_a_worker_is_reported_and_shown(
    desk_rollout: DeskRollout, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: bool
):
    """With class and message; an earlier report of another process stays."""
    (tmp_path / "request.json").write_text(_request(desk_rollout, tmp_path / "x").model_dump_json())
    main(tmp_path / "request.json", os.getpid(), once=True)
    first = ErrorReport(kind="RatioError", message="the first")
    if before:
        (tmp_path / ERROR).write_text(first.model_dump_json())
    sys.excepthook(ConfigError, ConfigError("the second"), None)
    assert "ConfigError: the second" in capsys.readouterr().err
    refusal = ErrorReport.model_validate_json((tmp_path / ERROR).read_bytes())
    assert refusal == (first if before else ErrorReport(kind="ConfigError", message="the second"))


@pytest.mark.usefixtures("rendezvous")
def test_a_communication_error_is_not_reported(desk_rollout: DeskRollout, tmp_path: Path):
    """The reason is in another process: no report is written until an error of this one."""
    (tmp_path / "request.json").write_text(_request(desk_rollout, tmp_path / "x").model_dump_json())
    main(tmp_path / "request.json", os.getpid(), once=True)
    with pytest.raises(Exception) as away:  # noqa: PT011
        distributed.all_reduce(torch.ones(1))
    sys.excepthook(away.type, away.value, away.tb)
    assert not (tmp_path / ERROR).exists()
    with pytest.raises(ValueError, match="own") as own:
        raise ValueError("own")
    sys.excepthook(own.type, own.value, own.tb)
    assert ErrorReport.model_validate_json((tmp_path / ERROR).read_bytes()).message == "own"


def test_a_worker_ends_without_its_launcher(desk_rollout: DeskRollout, tmp_path: Path):
    """The launcher is gone: the worker does not wait for the second process, which never starts."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / "request.json").write_text(_request(desk_rollout, tmp_path / "x").model_dump_json())
    meeting = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    began = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "grpo.learner.worker", str(tmp_path / "request.json"), str(gone.pid)],
        cwd=ROOT, env={**os.environ, **meeting}, capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (1, b"")
    assert time.monotonic() - began < 200
    assert not (tmp_path / ERROR).exists()


def test_processes_of_an_update_open_no_port_for_others(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No store of torch, whose content is unpickled, and nothing beyond the loopback interface, in any process.

    Afterwards they wait for the next update, and are ended when they have waited too long.
    """
    monkeypatch.setattr("grpo.learner.worker_group._IDLE_S", 3.0)
    opened: dict[tuple[str, int], Future[bool]] = {}
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_workers, _request(desk_rollout, tmp_path / "x", processes=2))
        while not wait([running], timeout=0.5).done:  # a port stays open for seconds; a look takes the core of a worker
            for address in listening(family()[1:]) - opened.keys():
                opened[address] = pool.submit(_is_store, *address)
        running.result()
        assert _processes()
        while _processes():  # a port that is no store leaves its client waiting until the process ends
            time.sleep(0.1)
    assert read_state(tmp_path / "x").step_count > 0
    assert opened
    assert {ip for ip, _ in opened} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert not any(probe.result() for probe in opened.values())


def _processes() -> set[int]:
    """torchrun and its workers below this process."""
    commands = each(family(), lambda process: (process.pid, {*process.cmdline()}))
    return {pid for pid, command in commands if command & {"torch.distributed.run", "grpo.learner.worker"}}


def test_the_processes_of_an_update_take_the_next_one(desk_rollout: DeskRollout, tmp_path: Path):
    """The second update has the weights of the first, in the same processes. After an error all of them are ended."""
    try:
        first = run_workers(_request(desk_rollout, tmp_path / "first", processes=2))
        workers = _processes()
        assert len(workers) >= 3  # torchrun and two workers
        second = run_workers(_request(desk_rollout, tmp_path / "second", processes=2))
        assert _processes() == workers
        without_speed = [
            UpdateMetrics.model_validate_json(metrics).model_copy(update={"tokens_per_s": 0.0, "mfu": None})
            for metrics in (first, second)
        ]
        assert without_speed[0] == without_speed[1]
        assert read_state(tmp_path / "first") == read_state(tmp_path / "second")
        with pytest.raises(WorkerFailed, match="Not a directory"):
            run_workers(_request(desk_rollout, desk_rollout.scored / "x", processes=2))
        assert not _processes()
    finally:
        idle_group.close()


def test_processes_that_no_update_takes_are_ended_after_a_while(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After `_IDLE_S` without an update. It is no error if they have ended by themselves at that moment."""

    def kill(torchrun: psutil.Process) -> None:
        kill_tree(torchrun)
        raise psutil.NoSuchProcess(torchrun.pid)

    closed = Event()

    def close(group: WorkerGroup, end: Callable[[WorkerGroup], None] = WorkerGroup.close) -> None:
        end(group)
        closed.set()

    idle_group.close()  # a group of an earlier test
    monkeypatch.setattr(worker_group, "kill_tree", kill)
    monkeypatch.setattr(worker_group, "_IDLE_S", 0.1)
    monkeypatch.setattr(WorkerGroup, "close", close)
    try:
        run_workers(_request(desk_rollout, tmp_path / "x", processes=2))
        assert closed.wait(60)
        assert not _processes()
    finally:
        idle_group.close()


@pytest.mark.parametrize(
    ("change", "shared"), [({}, True), ({"processes": 3}, False), ({"sharding": "sharded"}, False), (None, False)]
)
def test_only_an_update_that_starts_equal_processes_takes_them(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object] | None, shared: bool
):
    """Another number, another allocator, or a changed environment: others are started."""
    first = process_key(TrainingSettings(processes=2))
    if change is None:
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert (process_key(TrainingSettings(**{"processes": 2, **(change or {})})) == first) is shared  # type: ignore[arg-type]


def _is_store(host: str, port: int) -> bool:
    """True if a store of torch answers there, as its clients ask it."""
    try:
        distributed.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=3)).set("planted", "x")
    except (RuntimeError, ValueError):
        return False
    return True


def test_more_processes_than_accelerators_are_refused(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Three on a machine with two: before anything is started."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError) as refusal:
        run_workers(_request(desk_rollout, tmp_path / "x", processes=3))
    assert str(refusal.value) == (
        "training.processes is 3, but this machine has 2 accelerators. Lower it, because each process needs one"
    )


@pytest.mark.parametrize(("nodes", "interface", "refused"), [(2, "", True), (2, "lo", False), (1, "", False)])
def test_nodes_need_the_name_of_their_network(
    monkeypatch: pytest.MonkeyPatch, nodes: int, interface: str, refused: bool
):
    """Otherwise their unencrypted connections could go over any."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    settings = TrainingSettings(processes=1, nodes=nodes)
    with pytest.raises(ConfigError, match="GLOO_SOCKET_IFNAME is not set") if refused else nullcontext():
        check_devices(settings)


@pytest.mark.parametrize(
    ("files", "is_of_another"),
    [
        (("grpo/learner/update.py",), False),
        (("grpo/learner/learner.py", "torch/distributed/distributed_c10d.py"), True),
        (("torch/nn/utils/clip_grad.py", "torch/distributed/_functional_collectives.py", "torch/_ops.py"), True),
        (("torch/distributed/tensor/_dispatch.py", "torch/_ops.py"), False),
        (("grpo/learner/learner.py", "torch/_ops.py"), False),
        ((), False),
    ],
)
def test_whose_error_it_is_shows_in_the_place_where_it_was_raised(
    monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], is_of_another: bool
):
    """A functional collective waits in torch/_ops.py; so does an operation on this process's own shard."""
    frames = [FrameSummary(f"/packages/{name}", 1, "call", lookup_line=False) for name in files]
    monkeypatch.setattr(worker, "extract_tb", lambda traceback: frames)
    assert worker._is_of_another_process(None) is is_of_another
