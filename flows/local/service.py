"""Processes of this machine that serve: started once, found again, shared by whoever uses them, ended by the last.

Each leaves a record (which process, address) and a log in `services` under the home. A record counts only while that
very process lives: a stale one does no harm, nor does another program that was given the same id. Its processes also
carry a mark in their environment, by which children that outlived it are found, and one that never got a record.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.local.processes import end, process_identity, processes_with_variable
from grpo.errors import ConfigError, StorageError
from grpo.storage.files import storage_error, storage_errors, write_atomically
from grpo.storage.locks import file_lock

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_LAST_BYTES = 4000
_MARK = "GRPO_SERVICE"
"""The variable in the environment of its processes that says whose they are."""
_children: dict[int, subprocess.Popen[bytes]] = {}
"""What this process started, by process id: it has to be asked for its end, or it stays in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that answers under `<address>/health`; one without a port answers as long as it lives."""

    name: str
    """Of its record and its log."""
    home: Path
    """Folder of everything that runs leave behind; there is one such process for each."""
    arguments: tuple[str, ...]
    """What `python -m` is given."""
    host: str = "127.0.0.1"
    port: int | None = None
    path: str = ""
    """Of the address under which it serves."""
    remedy: str = "stop that program"
    """What to do where the port is taken."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Over the environment of whoever starts it; what is None is taken out."""

    @property
    def log(self) -> Path:
        """Where it writes what it has to say."""
        return self._file("log")

    def process(self) -> psutil.Process | None:
        """The process of the record, if it lives."""
        try:
            record = json.loads(self._file("json").read_text(encoding="utf-8"))
            if (child := _children.get(record["pid"])) is not None and child.poll() is not None:
                return None
            process = psutil.Process(record["pid"])
            if process.status() == psutil.STATUS_ZOMBIE or process_identity(process) != record["identity"]:
                return None
        except (OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
            return None
        return process

    def address(self) -> str | None:
        """Where it serves, if it does."""
        process = self.process()
        if process is None:
            return None
        url = self._recorded_address()
        return url if not url or (_listens(process, url) and _answers(f"{url}/health")) else None

    def start(self) -> str:
        """Start it, unless it lives; returns where it is going to serve.

        What is left of one that died is ended first. Raises `ConfigError` when its port belongs to another program.
        """
        with file_lock(self._file("start")):
            if self.process() is not None:
                return self._recorded_address()
            end(self._marked)
            self._refuse_taken_port()
            return self._start()

    def _start(self) -> str:
        with storage_errors(str(self.log)):
            output = self.log.open("ab")
        environment = {**os.environ, **self.environment, _MARK: self._mark}
        with output:
            child = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={name: value for name, value in environment.items() if value is not None},
            )
        _children[child.pid] = child
        url = "" if self.port is None else f"http://{self.host}:{self.port}{self.path}"
        try:
            record = {"pid": child.pid, "identity": process_identity(psutil.Process(child.pid)), "url": url}
            write_atomically(self._file("json"), json.dumps(record))
        except BaseException:  # without a record nobody would find it again
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        return url

    def _refuse_taken_port(self) -> None:
        if self.port is not None and not port_is_free(self.host, self.port):
            raise ConfigError(f"port {self.port} on {self.host} is in use by another program; {self.remedy}")

    def wait(self) -> str:
        """Wait until it answers; returns its address, and says where its log is if it does not."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while (url := self.address()) is None:
            if self.process() is None:
                self._refuse_taken_port()  # by somebody who started in the same moment
                raise self._without_room() or ConfigError(f"{self.name} ended at its start; see {self.log}")
            if time.monotonic() > deadline:
                self.stop()
                raise TimeoutError(f"{self.name} did not answer within {_START_TIMEOUT_S:.0f} s; see {self.log}")
            time.sleep(0.1)
        return url

    def _without_room(self) -> StorageError | None:
        """The error of a process that ended because the disk is full, as the end of its log tells."""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LAST_BYTES))
            return storage_error(RuntimeError(log.read().decode(errors="replace")), str(self.home))
        return None

    def stop(self, *, at_once: bool = False) -> None:
        """End it and its children; by force if they do not end by themselves, or `at_once`, or outlived it."""
        process = self.process()
        if process is not None:
            if not at_once:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                self._ended_within(_STOP_TIMEOUT_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also children that outlived it
            self._ended_within(_STOP_TIMEOUT_S)
        end(self._marked)
        self._file("json").unlink(missing_ok=True)

    @contextmanager
    def shared(self, *, meanwhile: Callable[[str], None] = lambda address: None) -> Iterator[str]:
        """Have it serve while the block runs, started unless it serves already.

        `meanwhile` is called with its address while it starts.

        Every user holds a lock, which the kernel frees even when a user is killed; the last one ends the service.
        """
        starting = file_lock(self._file("starting"))
        users = self._users()
        try:
            with starting:
                fcntl.flock(users, fcntl.LOCK_SH)
                meanwhile(self.start())
                url = self.wait()
            yield url
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            os.close(users)
            self.stop_if_unused()

    def stop_if_unused(self) -> bool:
        """End it if nobody uses it any more; returns whether it has ended."""
        if not self._file("users").exists():
            return True
        with file_lock(self._file("starting")):
            users = self._users()
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            else:
                self.stop()
                return True
            finally:
                os.close(users)

    def _ended_within(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.process() is not None and time.monotonic() < deadline:
            time.sleep(0.05)

    @property
    def _mark(self) -> str:
        return str(self.home.resolve() / self.name)

    def _marked(self) -> list[psutil.Process]:
        """Its processes, and those that they started; also where their leader is gone."""
        return [one for mark, one in processes_with_variable(_MARK) if mark == self._mark and one.pid != os.getpid()]

    def _recorded_address(self) -> str:
        return str(json.loads(self._file("json").read_text(encoding="utf-8"))["url"])

    def _file(self, kind: str) -> Path:
        return self.home / "services" / f"{self.name}.{kind}"

    def _users(self) -> int:
        """The file on which each user holds a shared lock."""
        with storage_errors(str(self.home)):
            return os.open(self._file("users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)


def _listens(process: psutil.Process, url: str) -> bool:
    """Whether it is this process, or a child, that has the port: another home's server may answer there, too."""
    port = urllib.parse.urlsplit(url).port
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            sockets = one.net_connections(kind="tcp")
            if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets):
                return True
    return False


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def port_is_free(host: str, port: int) -> bool:
    """Whether nothing listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) != 0


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
