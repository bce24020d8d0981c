from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from grpo.errors import ConfigError, StorageError
from grpo_local import managed_process as services
from grpo_local.managed_process import ManagedProcess, port_is_free, recorded_services, reserved_port
from grpo_local.processes import kill_all, process_identity, processes_with_variable
from tests.places import ROOT
from tests.ports import own_port


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ManagedProcess]:
    """A server of a folder in which there is a file `health`."""
    found = files(tmp_path, own_port())
    yield found
    found.stop(at_once=True)


def files(home: Path, port: int) -> ManagedProcess:
    home.mkdir(exist_ok=True)
    (home / "health").touch()
    arguments = ("http.server", str(port), "--bind", "127.0.0.1", "--directory", str(home))
    return ManagedProcess(name="files", home=home, arguments=arguments, port=port)


def test_a_running_service_is_found_and_not_started_twice(service: ManagedProcess, tmp_path: Path):
    """A caller with another port gets the address of the live process."""
    service.start()
    url = service.wait()
    other = files(tmp_path, own_port())
    assert other.start() == other.wait() == url
    assert other.process() == service.process()
    other.stop()
    assert service.process() is None
    assert port_is_free("127.0.0.1", service.port or 0)


def test_a_module_in_the_working_folder_is_not_imported(
    service: ManagedProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Anybody may write into /tmp: there, a module with the name of one of the server's is not its own."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.joinpath("socketserver.py").write_text("raise SystemExit('planted')", encoding="utf-8")
    monkeypatch.chdir(shared)
    service.start()
    service.wait()
    assert "planted" not in service.log.read_text(encoding="utf-8")


def test_a_service_that_ends_on_a_full_disk_says_so(small_disk: Path):
    """It cannot write into its log why it ends."""
    (small_disk / "fill").write_bytes(bytes(2**19))
    ending = ManagedProcess(name="ending", home=small_disk, arguments=("this",), port=own_port())
    ending.start()
    with pytest.raises(StorageError, match=rf"cannot write {small_disk}: the disk is full"):
        ending.wait()


def test_a_killed_process_is_detected(service: ManagedProcess):
    """It is restarted on the same port."""
    service.start()
    service.wait()
    process = service.process()
    assert process is not None
    process.kill()
    process.wait(timeout=300)
    assert service.address() is None
    service.start()
    assert service.wait()
    assert service.process() != process


@pytest.mark.parametrize(("boot", "ticks"), [("another", 0), ("this", 1)])
def test_another_process_with_the_recorded_id_is_left_alone(service: ManagedProcess, boot: str, ticks: int):
    """The id belongs to this test now and the record is older: the process is neither used nor killed."""
    service.log.parent.mkdir()
    own, began = process_identity(psutil.Process()).split()
    same = f"{own if boot == 'this' else boot} {int(began) - ticks}"
    record = {"pid": os.getpid(), "identity": same, "url": "http://127.0.0.1:1"}
    service.log.with_suffix(".json").write_text(json.dumps(record))
    assert service.process() is None
    service.stop()
    service.start()
    assert service.wait() == f"http://127.0.0.1:{service.port}"


def test_a_clock_that_is_set_leaves_what_lives_alone(service: ManagedProcess, monkeypatch: pytest.MonkeyPatch):
    """By an hour, after a virtual machine was paused: every process seems an hour younger."""
    service.start()
    url = service.wait()
    began = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: began(process) + 3600)
    assert service.address() == url


def test_the_copy_of_a_home_has_no_running_services_and_a_renamed_one_has(service: ManagedProcess, tmp_path: Path):
    """A copied record names the server of the original: it is neither used nor stopped. A rename keeps the folder."""
    service.start()
    service.wait()
    copied = tmp_path / "copy"
    shutil.copytree(service.home / "services", copied / "services")
    copy = files(copied, own_port())
    assert recorded_services(copied) == {"files": None}
    copy.stop()
    assert recorded_services(service.home) == {"files": service.process()}
    assert service.process() is not None
    (copied / "services").rename(copied / "services of the copy")
    (service.home / "services").rename(copied / "services")
    assert copy.process() is not None
    copy.stop()
    (copied / "services").rename(service.home / "services")
    assert service.process() is None


@pytest.mark.parametrize("record", ["", '{"pid": 1', "{}", "[]", '{"pid": 999999999, "identity": "", "url": ""}'])
def test_an_invalid_record_does_no_harm(service: ManagedProcess, record: str):
    """A truncated file, a file without a process, and one of a process that has ended."""
    service.log.parent.mkdir()
    service.log.with_suffix(".json").write_text(record)
    assert service.address() is None
    service.start()
    assert service.wait()


def test_a_port_of_another_program_is_named(tmp_path: Path):
    """Nothing is started, and the message has the remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        service = files(tmp_path, taken.getsockname()[1])
        with pytest.raises(ConfigError, match=rf"port {service.port} on 127.0.0.1 is in use .*\. Stop that program"):
            service.start()
    assert service.process() is None


def test_a_port_that_is_taken_during_the_start_is_named(tmp_path: Path):
    """Two homes that start at once both see a free port; the slower one fails with the remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # seems free until it listens, and can be bound by nobody else
        service = files(tmp_path, taken.getsockname()[1])
        service.start()
        taken.listen()
        with pytest.raises(ConfigError, match=rf"port {service.port} on 127.0.0.1 is in use .*\. Stop that program"):
            service.wait()


def test_an_answer_of_another_program_on_its_port_is_not_taken_for_its_own(service: ManagedProcess, tmp_path: Path):
    """A live process that is slow to listen, while another server answers on that port."""
    other = files(tmp_path / "other", service.port or 0)
    other.start()
    other.wait()
    record = json.loads(other.log.with_suffix(".json").read_text())
    sleeper = ManagedProcess(
        name="sleeper", home=tmp_path, arguments=("timeit", "-n1", "-r1", "-s", "import time", "time.sleep(60)")
    )
    sleeper.start()
    mine = json.loads(sleeper.log.with_suffix(".json").read_text())
    sleeper.log.with_suffix(".json").write_text(json.dumps({**mine, "url": record["url"]}))
    assert other.address() == record["url"]
    assert sleeper.address() is None
    sleeper.stop(at_once=True)
    other.stop(at_once=True)


def test_a_paused_service_of_another_command_is_left(service: ManagedProcess, monkeypatch: pytest.MonkeyPatch):
    """Others may use it. A command that only looks for it is told that it hangs, and not that there is none."""
    service.start()
    service.wait()
    process = service.process()
    assert process is not None
    monkeypatch.setattr(services, "_children", {})
    process.suspend()
    try:
        with pytest.raises(ConfigError, match=rf"process {process.pid}, runs and does not answer.*grpo down"):
            service.require_address()
        with pytest.raises(TimeoutError, match="files did not answer within 1 s"):
            replace(service, start_timeout_s=1.0).wait()
    finally:
        process.resume()
    assert service.wait() == service.require_address() == service.url
    assert service.process() == process
    service.stop()
    with pytest.raises(ConfigError, match=r"no files server of .* is running"):
        service.require_address()


def test_a_service_that_does_not_answer_at_its_start_is_stopped(tmp_path: Path):
    """By the command that has started it."""
    silent = ManagedProcess(
        name="silent", home=tmp_path, arguments=("timeit", "-n1", "import time; time.sleep(600)"), port=own_port()
    )
    silent.start()
    with pytest.raises(TimeoutError, match="silent did not answer within 1 s"):
        replace(silent, start_timeout_s=1.0).wait()
    assert silent.process() is None


def test_a_service_that_ends_at_its_start_names_its_log(tmp_path: Path):
    """The log has its error."""
    service = ManagedProcess(name="broken", home=tmp_path, arguments=("no_such_module",), port=own_port())
    service.start()
    with pytest.raises(ConfigError, match=r"broken ended at its start: .*no_such_module.*\. See .*broken\.log"):
        service.wait()
    assert "no_such_module" in service.log.read_text()


def test_the_last_user_stops_it(service: ManagedProcess):
    """It runs on after the first of two users leaves, and stops after the second."""
    with service.shared() as url:
        with service.shared() as same:
            assert same == url
        assert service.address() == url
    assert service.process() is None


USER = """
import sys, time
from pathlib import Path
from tests.flows.local.test_managed_process import files
with files(Path(sys.argv[1]), int(sys.argv[2])).shared() as url:
    print(url, flush=True)
    time.sleep(600)
"""


def test_a_killed_user_does_not_keep_it_running(service: ManagedProcess, tmp_path: Path):
    """It runs without a user until the next one leaves."""
    command = [sys.executable, "-c", USER, str(tmp_path), str(service.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as user:
        assert user.stdout is not None
        assert user.stdout.readline()
        assert not service.stop_if_unused()
        os.kill(user.pid, signal.SIGKILL)
    assert service.address()
    assert service.stop_if_unused()
    assert service.process() is None


CHILD = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
from tests.flows.local.test_managed_process import files
service = replace(files(Path(sys.argv[1]), int(sys.argv[2])), ends_with_parent=True)
service.start()
address = service.wait()
fork = os.fork() if sys.argv[3] == "forks" else None
if fork != 0:
    print(address, fork, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["alone", "forks"])
def test_a_service_that_ends_with_its_parent_ends_when_that_is_killed(
    service: ManagedProcess, tmp_path: Path, kind: str
):
    """It gets SIGTERM, also if a fork of the parent lives on. Without the setting it would go on."""
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(service.port), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        address, fork = parent.stdout.readline().split()
        assert address == service.url
        process = service.process()
        assert process is not None
        os.kill(parent.pid, signal.SIGKILL)
    gone, _ = psutil.wait_procs([process], timeout=300)
    if kind == "forks":
        os.kill(int(fork), signal.SIGKILL)
    assert gone


def test_a_service_that_ends_with_its_parent_is_stopped_as_others(service: ManagedProcess):
    """Its pipe is closed after its end."""
    tied = replace(service, ends_with_parent=True)
    tied.start()
    tied.wait()
    process = tied.process()
    tied.stop()
    assert process is not None
    assert not process.is_running()


def test_a_service_is_removed_from_the_process_table_when_its_last_thread_has_ended(
    service: ManagedProcess, monkeypatch: pytest.MonkeyPatch
):
    """Until then the system calls it a zombie and does not yet say how it ended."""
    service.start()
    service.wait()
    process = service.process()
    assert process is not None
    monkeypatch.setattr(services._children[process.pid], "poll", lambda: None)
    service.stop()
    assert not process.is_running()


def test_a_reserved_port_is_given_to_no_other_program_and_can_be_served_on(tmp_path: Path):
    """A service listens on it, also a second time. Another socket cannot."""
    with reserved_port() as port:
        service = files(tmp_path, port)
        for _ in range(2):
            service.start()
            assert service.wait() == f"http://127.0.0.1:{port}"
            service.stop()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
PARENT = f"""
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", {DEAF!r}])
signal.pause()
"""


def test_its_children_stop_with_it(tmp_path: Path):
    """Also one that ignores SIGTERM."""
    (tmp_path / "parent.py").write_text(PARENT)
    service = ManagedProcess(
        name="parent", home=tmp_path, arguments=("parent",), environment={"PYTHONPATH": str(tmp_path)}
    )
    service.start()
    parent = service.process()
    assert parent is not None
    deadline = time.monotonic() + 300
    while "deaf" not in service.log.read_text():
        assert time.monotonic() < deadline, service.log.read_text()
        time.sleep(0.05)
    children = parent.children(recursive=True)
    service.stop()
    gone, left = psutil.wait_procs(children, timeout=240)
    assert gone
    assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]


SERVING = """
import subprocess, sys
subprocess.run([sys.executable, "-m", "http.server", sys.argv[1], "--bind", "127.0.0.1", "--directory", sys.argv[2]])
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[ManagedProcess]:
    """A running service whose child holds the port."""
    (tmp_path / "serving.py").write_text(SERVING)
    (tmp_path / "health").touch()
    port = own_port()
    found = ManagedProcess(
        name="parent",
        home=tmp_path,
        arguments=("serving", str(port), str(tmp_path)),
        port=port,
        environment={"PYTHONPATH": str(tmp_path)},
    )
    found.start()
    found.wait()
    yield found
    found.stop(at_once=True)


@pytest.fixture
def widowed(family: ManagedProcess) -> ManagedProcess:
    """A service whose parent was killed while its child holds the port."""
    parent = family.process()
    assert parent is not None
    parent.kill()
    parent.wait(timeout=300)
    assert not port_is_free("127.0.0.1", family.port or 0)
    return family


def test_a_child_that_has_just_ended_does_not_hide_the_one_that_listens(
    family: ManagedProcess, monkeypatch: pytest.MonkeyPatch
):
    """It ends after the system has listed it and before its sockets are read."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        ended = psutil.Process(child.pid)
    children = psutil.Process.children
    monkeypatch.setattr(psutil.Process, "children", lambda *given, **more: [ended, *children(*given, **more)])
    assert family.address() == family.url


def test_a_child_that_outlived_its_parent_makes_room(widowed: ManagedProcess):
    """As with MLflow's server: it is restarted on the same port."""
    widowed.start()
    assert widowed.wait() == f"http://127.0.0.1:{widowed.port}"


def test_a_child_that_outlived_its_parent_is_stopped_with_the_service(widowed: ManagedProcess):
    """Nothing is left of it on the port."""
    widowed.stop()
    assert port_is_free("127.0.0.1", widowed.port or 0)


def test_processes_of_another_home_are_left_alone(widowed: ManagedProcess, tmp_path: Path):
    """Neither the same service of another home nor another service of this home stops the child."""
    for name, home in ((widowed.name, tmp_path / "other"), ("other", tmp_path)):
        other = ManagedProcess(name=name, home=home, arguments=("this",))
        other.start()
        other.stop(at_once=True)
    assert not port_is_free("127.0.0.1", widowed.port or 0)


def test_a_child_that_cannot_be_killed_keeps_no_service_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It waits for a device, as a run of a worker may. The worker is needed for the other runs."""
    service = ManagedProcess(name="worker", home=tmp_path, arguments=("this",))
    service.log.parent.mkdir()
    environment = {"GRPO_SERVICE": str(tmp_path.resolve() / service.name)}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(services, "kill_all", lambda find: kill_all(find, wait_s=0.0))
            patch.setattr(psutil.Process, "kill", lambda self: None)
            service.start()
        assert f"processes [{child.pid}] were killed and did not end. worker is started all the same" in caplog.text
    finally:
        child.kill()
        child.wait()
        service.stop(at_once=True)


def test_a_process_without_a_record_makes_room(service: ManagedProcess):
    """Its parent was killed before the record was written."""
    service.start()
    url = service.wait()
    lost = service.process()
    service.log.with_suffix(".json").unlink()
    service.start()
    assert service.wait() == url
    assert service.process() not in (None, lost)


def test_a_process_whose_record_cannot_be_written_is_stopped(service: ManagedProcess, monkeypatch: pytest.MonkeyPatch):
    """On a full disk; otherwise each attempt would leave one more."""

    def full(path: Path, content: str, *, mode: int) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(services, "write_atomically", full)
    with pytest.raises(StorageError, match="the disk is full"):
        service.start()
    assert not [
        one for mark, one in processes_with_variable("GRPO_SERVICE") if mark == str(service.home / service.name)
    ]
