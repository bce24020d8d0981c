"""Fork servers of a worker: a process for a remote stage within milliseconds, see `grpo_local.workers.fork_server`.

A server is used only for runs of the same project folder that have the same environment, secrets included. It ends when
its worker ends, also if that is killed: the server then reads the end of its socket. If a run is going on at that time,
it continues to its end, as it does without a server, and the server ends with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from prefect.runner._process_manager import ProcessHandle, create_isolated_termination_scope

from grpo.errors import ConfigError
from grpo_local.workers.fork_server import IDLE_MINUTES, NO_RUN, RUN, RUN_PREFIX

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.runner._control_channel import ControlChannel

logger = logging.getLogger("prefect.worker.process")

_DEFAULT_MINUTES = "30"
_MAX_SERVERS = 2
"""Servers of a worker, each with about half a GiB. If one more is needed, the least recently used one ends."""
_POLL_S = 0.5
_FOLDER = "prefect.deployments.steps.set_working_directory"
_STAGE = ("grpo_flows.stage.run_stage", "grpo_flows/stage.py:run_stage")
"""Entrypoints of the flow whose processes are forked."""


def idle_minutes() -> float:
    """Minutes after which a server without a stage ends.

    Raises `ConfigError` if the variable `IDLE_MINUTES` is not a number of at least 0.
    """
    text = os.environ.get(IDLE_MINUTES, _DEFAULT_MINUTES)
    with suppress(ValueError):
        if (minutes := float(text)) >= 0:
            return minutes
    raise ConfigError(
        f"{IDLE_MINUTES} is {text!r}. Set it to a number of minutes, or to 0, so that each stage has a new process"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forkable:
    """A deployment of remote stages."""

    folder: str
    """Working directory of its runs, in which modules are looked up first."""
    entrypoint: str


def forkable(deployment: DeploymentResponse) -> Forkable | None:
    """The deployment if its runs may be forked: it runs stages, in a folder that is there before the run begins.

    None if a run has to fetch or prepare its code first. Its process is then started afresh.
    """
    steps = deployment.pull_steps or []
    names = [name for step in steps for name in step]
    if names != [_FOLDER] or not (deployment.entrypoint or "").endswith(_STAGE):
        return None
    folder = steps[0][_FOLDER].get("directory", "")
    if not (Path(folder).is_absolute() and Path(folder).is_dir()):
        return None
    return Forkable(folder=folder, entrypoint=str(deployment.entrypoint))


@dataclass(slots=True)
class ForkedProcess:
    """Process of a run. It is a child of its server, which reports its end."""

    pid: int
    returncode: int | None = None


@dataclass(slots=True)
class _Server:
    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    replies: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    ends: dict[int, asyncio.Future[int | None]] = field(default_factory=dict)
    reading: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Pass the server's messages on until it ends. Then runs that are going on have no known exit code."""
        with suppress(OSError):
            while (line := await self.reader.readline()).endswith(b"\n"):  # a killed server may leave a part of a line
                message = json.loads(line)
                if "ended" in message:
                    end = self.ends.get(message["ended"])
                    if end is not None and not end.done():  # otherwise nothing waits for the process any more
                        end.set_result(message["returncode"])
                else:
                    if "forked" in message:
                        self.ends[message["forked"]] = asyncio.get_running_loop().create_future()
                    self.replies.put_nowait(message)
        for end in self.ends.values():
            if not end.done():
                end.set_result(None)
        self.replies.put_nowait(None)
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()
        await anyio.to_thread.run_sync(self.process.wait)

    def retire(self) -> None:
        """Let it end when its runs have ended."""
        with suppress(OSError):
            self.writer.write_eof()

    async def fork(self, variables: Mapping[str, str]) -> ForkedProcess | None:
        """A process for a run. None if this server forks no more, because it has ended or its sources have changed."""
        with suppress(OSError):
            self.writer.write(json.dumps(dict(variables)).encode() + b"\n")
            await self.writer.drain()
        reply = await self.replies.get()
        if reply is None:
            return None
        if "changed" in reply:
            logger.info("a new fork server is started, because %s has changed", reply["changed"])
            return None
        return ForkedProcess(reply["forked"])

    async def wait(self, process: ForkedProcess) -> None:
        """Wait until a process has ended, and set its exit code. If the server has ended, the code is 1."""
        try:
            code = await self.ends[process.pid]
        finally:  # also if the wait is cancelled, because the future is cancelled as well
            del self.ends[process.pid]
        while code is None and _is_alive(process.pid):
            await anyio.sleep(_POLL_S)
        process.returncode = 1 if code is None else code


_Key = tuple[str, frozenset[tuple[str, str]]]
"""Folder and environment."""


class ForkServers:
    """The fork servers of one worker, by folder and environment."""

    def __init__(self, *, idle_minutes: float) -> None:
        self._idle_s = 60 * idle_minutes
        self._servers: dict[_Key, _Server] = {}
        self._starting: dict[_Key, asyncio.Lock] = {}
        self._reading: set[asyncio.Task[None]] = set()
        """Tasks of all servers that have not ended."""

    @property
    def enabled(self) -> bool:
        """True if processes are forked at all."""
        return self._idle_s > 0 and sys.platform == "linux"

    async def fork(self, folder: str, environment: Mapping[str, str]) -> tuple[_Server, ForkedProcess]:
        """A process for a run with this environment, and the server that forked it.

        Raises `RuntimeError` if a new server ends before it has forked the process. Its log has the reason.
        """
        variables = {name: value for name, value in environment.items() if name.startswith(RUN_PREFIX)}
        common = {name: value for name, value in environment.items() if not name.startswith(RUN_PREFIX)}
        key = folder, frozenset(common.items())
        async with self._starting.setdefault(key, asyncio.Lock()):
            server = self._servers.pop(key, None)
            try:
                process = None if server is None else await server.fork(variables)
                if server is None or process is None:
                    server = await self._start(folder, common)
                    process = await server.fork(variables)
            except asyncio.CancelledError:  # otherwise `close` would wait until this server is idle
                if server is not None:
                    server.retire()
                raise
            if process is None:
                raise RuntimeError("the fork server ended at its start. The log of the worker has the reason")
            self._servers[key] = server  # the last one of the dictionary is the last one used
            while len(self._servers) > _MAX_SERVERS:
                self._servers.pop(next(iter(self._servers))).retire()
            return server, process

    async def _start(self, folder: str, environment: Mapping[str, str]) -> _Server:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "grpo_local.workers.fork_server", str(theirs.fileno()), str(self._idle_s)],
                cwd=folder,
                env={**environment, RUN: NO_RUN},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        server = _Server(process, reader, writer)
        self._reading.add(server.reading)
        server.reading.add_done_callback(self._reading.discard)
        return server

    async def close(self) -> None:
        """End all servers. The worker calls this when its runs have ended."""
        for server in self._servers.values():
            server.retire()
        self._servers.clear()
        await asyncio.gather(*self._reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkStarter:
    """Starts the process of a flow run by a fork. It stands in for Prefect's `EngineCommandStarter`."""

    servers: ForkServers
    deployment: Forkable
    environment: Mapping[str, str]
    control_channel: ControlChannel

    async def start(
        self, flow_run: FlowRun, task_status: TaskStatus[ProcessHandle] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Start the process, hand it over, and wait until it has ended."""
        port, token = self.control_channel.register(flow_run.id)
        environment = {
            **self.environment,
            "PYTHONPATH": _import_path(self.deployment.folder, self.environment.get("PYTHONPATH")),
            RUN: str(flow_run.id),
            "PREFECT__FLOW_ENTRYPOINT": self.deployment.entrypoint,
            "PREFECT__ENABLE_CANCELLATION_AND_CRASHED_HOOKS": "false",
            "PREFECT__CONTROL_PORT": str(port),
            "PREFECT__CONTROL_TOKEN": token,
        }
        server, process = await self.servers.fork(self.deployment.folder, environment)
        handle = ProcessHandle(process, termination_scope=create_isolated_termination_scope(process.pid))  # type: ignore[arg-type]
        task_status.started(handle)
        await server.wait(process)


def _import_path(folder: str, path: str | None) -> str:
    """PYTHONPATH of a run: the folder first, as Prefect's worker does it."""
    return os.pathsep.join(dict.fromkeys([folder, *(path.split(os.pathsep) if path else [])]))


def _is_alive(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True
