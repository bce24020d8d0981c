"""Commands of the project, each in a process forked from one that has imported the slow packages of others.

A fork is spared the ten seconds of torch, transformers, MLflow, Great Expectations and the packages of Prefect. It has
nothing of the project: it imports it with its own environment, and is killed like any other process. `start` is for
tests that call commands themselves. `program` is for shells and scripts, which find a `grpo` on their PATH.

A command that is told a server by PREFECT_API_URL is forked from a process that has imported Prefect and the project as
well, with the same variables of Prefect, because only these are read by an import. Commands that start their own server
import Prefect later, with its address. The installed command is tested by tests/e2e/test_wheel.py.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.places import ROOT

_PACKAGES = (
    *("torch", "transformers.modeling_utils", "matplotlib.figure", "sklearn", "pyarrow.parquet", "mlflow.pyfunc"),
    *("mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store", "alembic.command"),
    *("griffe", "pydantic_settings", "pendulum", "rich.progress", "rich.table", "rich.traceback", "typer", "httpx"),
    *("websockets.asyncio.client", "coolname", "graphviz", "prometheus_client", "jsonschema", "fsspec"),
    *(
        "great_expectations",
        "transformers.models.llama.modeling_llama",
        "optuna",
        "pathspec",
        "slugify",
        "asgi_lifespan",
    ),
)
"""Not Prefect, which reads the environment when it is imported, but what it imports."""
_OURS = ("grpo_cli.app", "grpo_flows.train", "grpo_flows.evaluate", "grpo_local.preflight", "grpo.learner.update")
"""Modules that import Prefect and most of the project."""
_READ = "PREFECT"
"""Begin of the names of variables that are read when a module is imported."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(_PACKAGES))


class Forked:
    """The process of a command, a descendant of this one."""

    def __init__(self, forker: Path, request: Mapping[str, Any], streams: tuple[int, int, int]) -> None:
        self._answers = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._answers.connect(str(forker))
        socket.send_fds(self._answers, [b"0"], streams)
        self._answers.sendall(f"{json.dumps(request)}\n".encode())
        self._lines = self._answers.makefile("rb", buffering=0)
        self.pid = int(self._lines.readline())
        self.exitcode: int | None = None
        """Its exit code, or the negative number of the signal that ended it, once it was waited for."""

    def is_alive(self) -> bool:
        """True until it has ended."""
        self.join(0)
        return self.exitcode is None

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, at most so long."""
        if self.exitcode is None and wait([self._answers], timeout_s):
            self.exitcode = int(self._lines.readline())
            self._lines.close()
            self._answers.close()

    def kill(self) -> None:
        """Send it SIGKILL, unless it has ended."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Command:
    """A command that was started; both of its streams go to one file."""

    process: Forked
    name: str
    output: Path

    def lines(self) -> Iterator[str]:
        """Yield each line when it is there, until the process has ended."""
        with self.output.open(encoding="utf-8") as file:
            line = ""
            while True:
                alive = self.process.is_alive()
                line += file.readline()
                if line.endswith("\n"):
                    yield line
                    line = ""
                elif not alive:
                    return
                else:
                    self.process.join(0.02)

    def end(self, *, timeout_s: float = 600) -> tuple[int, str]:
        """Wait for the end; returns the exit code and what was printed."""
        self.process.join(timeout_s)
        printed = self.output.read_text(encoding="utf-8")
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"{self.name} had not ended after {timeout_s:.0f} s:\n{printed}")
        return self.process.exitcode, printed


def start(*arguments: str, environment: Mapping[str, str], output: Path, cwd: Path = ROOT) -> Command:
    """Start `python -m grpo_cli ARGUMENTS` with this environment and nothing of the caller's."""
    output.write_text("", encoding="utf-8")
    os.umask(umask := os.umask(0o077))
    request = {"arguments": arguments, "environment": dict(environment), "cwd": str(cwd), "path": [str(cwd)]}
    request["umask"] = umask
    with output.open("ab") as both, Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), both.fileno(), both.fileno())
        return Command(Forked(_forker(_read_by_imports(environment)), request, streams), f"grpo {arguments[0]}", output)


@contextmanager
def program() -> Iterator[Path]:
    """A program that does what `grpo` does, in a forked process, while the block runs.

    The process has the environment, the working folder and the streams of its caller, which waits for its end. It gets
    the signals that its caller gets. If its caller is killed, it is killed as well, a moment later.
    """
    folder = Path(tempfile.mkdtemp(prefix="grpo-program-"))
    client = (sys.executable, "-I", "-S", str(Path(__file__).with_name("client.py")), str(_forker(())))
    script = folder / "grpo"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    try:
        yield script
    finally:
        shutil.rmtree(folder)


def _read_by_imports(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Variables that Prefect reads when it is imported, if a command with this environment changes none of them."""
    from grpo_local import settings

    known = {*settings.offline_variables(), *settings.home_variables(Path()), "PREFECT_API_URL"}
    if not known <= environment.keys():
        return ()
    return tuple(sorted((name, value) for name, value in environment.items() if name.startswith(_READ)))


@cache
def _forker(variables: tuple[tuple[str, str], ...]) -> Path:
    """Socket of a process that forks commands. If variables are given, it has imported Prefect and the project."""
    path = Path(tempfile.mkdtemp(prefix="grpo-forker-")) / "socket"  # short: it has at most 107 characters
    alive, ends = multiprocessing.Pipe(duplex=False)
    with alive, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        process = _context.Process(target=_fork_commands, args=(listener, alive, dict(variables)))
        process.start()

    def end() -> None:
        ends.close()
        process.join()

    atexit.register(end)  # before multiprocessing waits for the process
    return path


def _fork_commands(listener: socket.socket, alive: Connection, variables: dict[str, str]) -> None:
    """Fork a command for each caller, and tell it the id of the process and then its exit code, until the tests end."""
    if variables:
        for name in [name for name in os.environ if name.startswith(_READ)]:
            del os.environ[name]
        os.environ.update(variables)
        sys.path[:0] = [str(path) for path in (ROOT, ROOT / "flows", ROOT / "tasks")]
        for module in _OURS:
            importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy every page of them
    fork = multiprocessing.get_context("fork")
    running: dict[socket.socket, tuple[BaseProcess, int]] = {}
    while alive not in (ready := wait([alive, listener, *running, *(end for _, end in running.values())])):
        for caller, (process, end) in list(running.items()):
            if caller in ready and process.is_alive():
                process.kill()  # its caller has ended
                process.join()
            if not process.is_alive():
                _tell(caller, process.exitcode)
                caller.close()
                os.close(end)
                del running[caller]
        if listener in ready:
            caller, _ = listener.accept()
            _, streams, _, _ = socket.recv_fds(caller, 1, 3)
            with caller.makefile("rb", buffering=0) as lines:
                request = json.loads(lines.readline())
            process = fork.Process(target=_run, args=(streams, request))
            process.start()
            for stream in streams:
                os.close(stream)
            running[caller] = process, os.pidfd_open(process.pid or 0)
            _tell(caller, process.pid)
    shutil.rmtree(Path(listener.getsockname()).parent)


def _tell(caller: socket.socket, number: int | None) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        caller.sendall(f"{number}\n".encode())


def _run(streams: list[int], request: Mapping[str, Any]) -> None:
    """Do what `python -m grpo_cli` does, its end included. `path` of the request is where it finds modules first."""
    for stream, place in zip(streams, (0, 1, 2), strict=True):
        os.dup2(stream, place)
        os.close(stream)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115, multiprocessing has closed it
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    ours = (ROOT, ROOT / "flows", ROOT / "tasks")
    others = [entry for entry in sys.path if Path(entry) not in (Path.cwd(), *ours)]
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*request.get("path", ()), *given, *map(str, ours), *others]
    sys.argv[1:] = request["arguments"]
    try:
        runpy.run_module("grpo_cli", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
