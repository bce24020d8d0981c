"""Background processes of this machine: started once, shared by all their users, and stopped by the last user.

Each has a record (process, address) and a log in `services` under the home. A record is valid only while that very
process lives, and only in the folder that it was written in. Therefore a stale record or another program with the same
process id does no harm, and in the copy of a home the servers of the original are neither used nor stopped. The
processes of a service also have a mark in their environment, which is used to find children that outlived it and
processes without a record.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import psutil

from grpo.errors import ConfigError
from grpo.storage.files import is_full, storage_error, storage_errors, write_atomically
from grpo.storage.locks import file_lock
from grpo_local.processes import kill_all, process_identity, processes_with_variable
from grpo_local.service_logs import rotating

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_LAST_BYTES = 4000
_LINE = 500
_MARK = "GRPO_SERVICE"
"""Environment variable that marks the processes of a service."""
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes started by this one, by id. They have to be polled, because otherwise they stay in the process table."""
_LOCKS = Path("/proc/locks")
_LOCK_FIELDS = 8
"""Words of a line such as `1: FLOCK ADVISORY READ 1234 fd:01:5678 0 EOF`, with a process and an inode."""
WITH_PARENT = "grpo_local.with_parent"
"""Module that runs another module until the parent ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedProcess:
    """A process that answers at `<address>/health`. If it has no port, it is healthy while it lives."""

    name: str
    """Name of its record and its log."""
    home: Path
    """Folder of all records. Each home has one such process."""
    arguments: tuple[str, ...]
    """Arguments of `python -P -m`. Without -P it would import modules from the working folder, in which others may
    write, e.g. if the command is called in /tmp."""
    scheme: str = "http"
    host: str = "127.0.0.1"
    port: int | None = None
    path: str = ""
    """Path of its address."""
    remedy: str = "Stop that program"
    """Instruction that the error gives if the port is taken."""
    inherited: tuple[str, ...] = ("*",)
    """Variables that it gets from its parent, as patterns of their names."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Changes to these variables. None removes a variable."""
    working_folder: Path | None = None
    """Its working folder, if it is not its parent's."""
    started_path: str = "/health"
    """Path that answers once it has started."""
    start_timeout_s: float = _START_TIMEOUT_S
    stop_timeout_s: float = _STOP_TIMEOUT_S
    """Time between SIGTERM and SIGKILL."""
    log_file: Path | None = None
    """Its log, if it is not next to its record."""
    ends_with_parent: bool = False
    """End it when the process that started it has ended, even if that was killed."""

    @property
    def url(self) -> str:
        """The address at which it answers when it runs. Empty if it has no port."""
        return "" if self.port is None else f"{self.scheme}://{self.host}:{self.port}{self.path}"

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.log_file or self._file("log")

    @property
    def variables(self) -> dict[str, str]:
        """The environment that it is started with."""
        inherited = {
            name: text for name, text in os.environ.items() if any(fnmatchcase(name, known) for known in self.inherited)
        }
        changed = {**inherited, **self.environment, _MARK: self._mark}
        return {name: value for name, value in changed.items() if value is not None}

    def process(self) -> psutil.Process | None:
        """The recorded process, if it lives."""
        try:
            record = json.loads(self._file("json").read_text(encoding="utf-8"))
            if record["folder"] != self._folder:
                return None
            if (child := _children.get(record["pid"])) is not None and child.poll() is not None:
                return None
            process = psutil.Process(record["pid"])
            if process.status() == psutil.STATUS_ZOMBIE or process_identity(process) != record["identity"]:
                return None
        except (OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
            return None
        return process

    def address(self, path: str = "/health") -> str | None:
        """Its address, if it answers at this path."""
        process = self.process()
        if process is None:
            return None
        url = self._recorded_address()
        # The request comes first: it is refused at once while the process starts, and `_listens` reads all of /proc.
        return url if not url or (_answers(f"{url}{path}") and _listens(process, url)) else None

    def require_address(self) -> str:
        """Its address. Raises `ConfigError` if it does not run, or if it runs and does not answer."""
        if (url := self.address(self.started_path)) is not None:
            return url
        if (process := self.process()) is None:
            raise ConfigError(f"no {self.name} server of {self.home} is running. Start it with grpo up")
        raise ConfigError(
            f"the {self.name} server of {self.home}, process {process.pid}, runs and does not answer. See {self.log}. "
            "Stop it with grpo down"
        )

    def start(self) -> str:
        """Start it, unless it lives. Returns its address.

        If an earlier process died, its remaining children are killed first. Raises `ConfigError` if another program
        uses the port.
        """
        with file_lock(self._file("start")):
            if self.process() is not None:
                return self._recorded_address()
            try:
                kill_all(self._marked)
            except TimeoutError as error:  # e.g. it waits for a device or a network disk, and will not go on after that
                logger.warning("%s. %s is started all the same", error, self.name)
            self._refuse_taken_port()
            return self._start()

    def _start(self) -> str:
        with storage_errors(str(self.log)):
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", *([WITH_PARENT] if self.ends_with_parent else []), *self.arguments],
                stdout=output,
                stderr=output,
                stdin=subprocess.PIPE if self.ends_with_parent else subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.working_folder,
                env=self.variables,
            )
        finally:
            os.close(output)
        _children[child.pid] = child
        try:
            process = {"pid": child.pid, "identity": process_identity(psutil.Process(child.pid))}
            write_atomically(
                self._file("json"), json.dumps({**process, "folder": self._folder, "url": self.url}), mode=0o600
            )
        except BaseException:  # because without a record it could not be found
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        return self.url

    def _refuse_taken_port(self) -> None:
        if self.port is not None and not port_is_free(self.host, self.port):
            raise ConfigError(f"port {self.port} on {self.host} is in use by another program. {self.remedy}")

    def wait(self) -> str:
        """Wait until it has started, and return its address.

        If it does not start, the error names its log, and it is stopped. If another command has started it, it is left,
        because others may use it: it may only be paused, or starved by a machine that swaps.
        """
        deadline = time.monotonic() + self.start_timeout_s
        while (url := self.address(self.started_path)) is None:
            if self.process() is None:
                self._refuse_taken_port()  # by a program that started at the same time
                last = self._end_of_log()
                cause = OSError(errno.ENOSPC, last) if is_full(self.home) else RuntimeError(last)  # its log may be cut
                full = storage_error(cause, str(self.home))
                raise full or ConfigError(f"{self.name} ended at its start: {self.last_line()}. See {self.log}")
            if time.monotonic() > deadline:
                if (process := self.process()) is not None and process.pid in _children:
                    self.stop()
                raise TimeoutError(f"{self.name} did not answer within {self.start_timeout_s:.0f} s. See {self.log}")
            time.sleep(0.1)
        return url

    def last_line(self) -> str:
        """The last line of its log, shortened, or `its log is empty`."""
        return self._end_of_log().strip().rpartition("\n")[2][:_LINE] or "its log is empty"

    def describe_end(self) -> str:
        """Reason why the process that this one has started last has ended: its signal, or the last line of its log."""
        child = _children.get(int(json.loads(self._file("json").read_text(encoding="utf-8"))["pid"]))
        code = None if child is None else child.poll()
        return f"{signal.Signals(-code).name} has ended it" if code is not None and code < 0 else self.last_line()

    def _end_of_log(self) -> str:
        """The last bytes of its log, which have the error that ended it."""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LAST_BYTES))
            return log.read().decode(errors="replace")
        return ""

    def stop(self, *, at_once: bool = False) -> None:
        """Stop it and its children with SIGTERM and then SIGKILL, or with `at_once` only with SIGKILL."""
        process = self.process()
        if process is not None:
            if not at_once:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                self._wait_for_end(self.stop_timeout_s)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also children that outlived it
            self._wait_for_end(_STOP_TIMEOUT_S)
        kill_all(self._marked)
        if process is not None and (child := _children.get(process.pid)) is not None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_STOP_TIMEOUT_S)  # it is a zombie that cannot be removed until its last thread has ended
            if child.stdin is not None:
                child.stdin.close()  # only now, because it is a second signal for a process that ends
        self._file("json").unlink(missing_ok=True)

    @contextmanager
    def shared(self, *, while_starting: Callable[[str], None] = lambda address: None) -> Iterator[str]:
        """Keep it running while the block runs. It is started unless it runs already.

        `while_starting` is called with its address while it starts.

        Every user holds a lock, which the kernel frees even if the user is killed. The last user stops the service.
        """
        starting = file_lock(self._file("starting"))
        users = self._users()
        try:
            with starting:
                fcntl.flock(users, fcntl.LOCK_SH)
                address = self.start()
            while_starting(address)
            with rotating(self.log.parent):
                yield self.wait()
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            os.close(users)
            self.stop_if_unused()

    def users(self) -> list[psutil.Process] | None:
        """Living processes that share it, see `shared`. None on a system that does not list its locks."""
        try:
            file, locks = self._file("users").stat().st_ino, _LOCKS.read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        users = list[psutil.Process]()
        for _, _, _, _, pid, place, *_ in (fields for line in locks if len(fields := line.split()) == _LOCK_FIELDS):
            if place.endswith(f":{file}"):
                with suppress(psutil.NoSuchProcess):
                    users.append(psutil.Process(int(pid)))
        return users

    def stop_if_unused(self) -> bool:
        """Stop it if it has no users left. Returns True if it has stopped."""
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

    def _wait_for_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.process() is not None and time.monotonic() < deadline:
            time.sleep(0.05)

    @property
    def _mark(self) -> str:
        return str(self.home.resolve() / self.name)

    def _marked(self) -> list[psutil.Process]:
        """Its processes and their descendants, also after their leader has ended."""
        marked = processes_with_variable(_MARK)
        return [process for mark, process in marked if mark == self._mark and process.pid != os.getpid()]

    def _recorded_address(self) -> str:
        return str(json.loads(self._file("json").read_text(encoding="utf-8"))["url"])

    @property
    def _folder(self) -> str:
        """Identity of the folder of the records. A renamed folder keeps it, and a copy has another one."""
        status = self._file("json").parent.stat()
        return f"{status.st_dev} {status.st_ino}"

    def _file(self, kind: str) -> Path:
        return self.home / "services" / f"{self.name}.{kind}"

    def _users(self) -> int:
        """Descriptor of the file on which each user holds a shared lock."""
        with storage_errors(str(self.home)):
            return os.open(self._file("users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def recorded_services(home: Path) -> dict[str, psutil.Process | None]:
    """Process of each service that has a record in a home. None if it does not live."""
    names = sorted(record.stem for record in (home / "services").glob("*.json"))
    return {name: ManagedProcess(name=name, home=home, arguments=()).process() for name in names}


def _listens(process: psutil.Process, url: str) -> bool:
    """True if this process or a child listens on the port, because another home's server might answer there."""
    port = urllib.parse.urlsplit(url).port
    with suppress(psutil.NoSuchProcess):
        for listener in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # a child that has ended says nothing about the others
                sockets = listener.net_connections(kind="tcp")
                if any(socket.status == psutil.CONN_LISTEN and socket.laddr.port == port for socket in sockets):
                    return True
    return False


def _answers(url: str) -> bool:
    any_certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # a certificate names the public host, not this address
    any_certificate.check_hostname, any_certificate.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=2, context=any_certificate) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def port_is_free(host: str, port: int) -> bool:
    """True if nothing listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) != 0


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that no other program is given while the block runs, and that a service can listen on.

    The block has a socket that is bound to the port and does not listen. On Linux a second socket can then listen on
    the port if it has SO_REUSEADDR, as servers have. Other systems do not allow this, so there the port is only chosen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
