"""Commands of the project, each in a process forked from one that has imported the slow packages of others.

A fork has nothing of the project: it imports it with its own environment, and is killed like any other process. It
is spared the eight seconds of torch, transformers, MLflow and the packages of Prefect. `start` is for tests that call
commands themselves. `program` is for shells and scripts, which find a `grpo` on their PATH.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import runpy
import shlex
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
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
        "optuna",
        "transformers.models.llama.modeling_llama",
        "pathspec",
        "opentelemetry.sdk.trace",
    ),
)
"""Not Prefect, which reads the environment when it is imported, but what it imports."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(_PACKAGES))


@dataclass(frozen=True, slots=True)
class Command:
    """A command that was started; both of its streams go to one file."""

    process: BaseProcess
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
                    time.sleep(0.005)

    def end(self, *, timeout_s: float = 600) -> tuple[int, str]:
        """Wait for the end; returns the exit code and what was printed."""
        self.process.join(timeout_s)
        printed = self.output.read_text(encoding="utf-8")
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"{self.process.name} had not ended after {timeout_s:.0f} s:\n{printed}")
        return self.process.exitcode, printed


def start(*arguments: str, environment: Mapping[str, str], output: Path, cwd: Path = ROOT) -> Command:
    """Start `python -m grpo_cli ARGUMENTS` with this environment and nothing of the caller's."""
    output.write_text("", encoding="utf-8")
    with output.open("ab") as both, Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), both.fileno(), both.fileno())
        return Command(_forked(arguments, environment, streams, cwd=cwd, path=(str(cwd),)), output)


@contextmanager
def program() -> Iterator[Path]:
    """A program that does what `grpo` does, in a forked process, while the block runs.

    The process has the environment, the working folder and the streams of its caller, which waits for its end. It gets
    the signals that its caller gets. If its caller is killed, it is killed as well, a moment later.
    """
    folder = Path(tempfile.mkdtemp(prefix="grpo-program-"))  # short: the path of a socket has at most 107 characters
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(folder / "socket"))
        server.listen()
        threading.Thread(target=_answer_all, args=(server,), daemon=True).start()
        client = (sys.executable, "-I", "-S", str(Path(__file__).with_name("client.py")), str(folder / "socket"))
        script = folder / "grpo"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        try:
            yield script
        finally:
            server.shutdown(socket.SHUT_RDWR)  # its thread waits for the next caller
            shutil.rmtree(folder)


def _answer_all(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            caller, _ = server.accept()
            threading.Thread(target=_answer, args=(caller,), daemon=True).start()


def _answer(caller: socket.socket) -> None:
    """Start the command of a caller, and tell it the id of the process and then its exit code."""
    with caller, caller.makefile("rw", encoding="utf-8") as lines:
        _, streams, _, _ = socket.recv_fds(caller, 1, 3)
        asked: dict[str, Any] = json.loads(lines.readline())
        process = _forked(
            tuple(asked["arguments"]), asked["environment"], streams, cwd=Path(asked["cwd"]), umask=asked["umask"]
        )
        for stream in streams:
            os.close(stream)
        with suppress(BrokenPipeError, ConnectionResetError):
            lines.write(f"{process.pid}\n")
            lines.flush()
        wait([process.sentinel, caller])
        if process.is_alive():
            process.kill()  # its caller has ended
        process.join()
        with suppress(BrokenPipeError, ConnectionResetError):
            lines.write(f"{process.exitcode}\n")
            lines.flush()


class _Stream:
    """A descriptor of this process, which arrives as one of the forked process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, (DupFd(self._descriptor),)


def _detached(duplicate: Any) -> int:
    descriptor: int = duplicate.detach()
    return descriptor


def _forked(
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    streams: tuple[int, ...] | list[int],
    *,
    cwd: Path,
    path: tuple[str, ...] = (),
    umask: int | None = None,
) -> BaseProcess:
    process = _context.Process(
        target=_run,
        args=(arguments, dict(environment), [_Stream(stream) for stream in streams], str(cwd), path, umask),
        name=f"grpo {' '.join(arguments)}",
    )
    process.start()
    return process


def _run(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    streams: list[int],
    cwd: str,
    path: tuple[str, ...],
    umask: int | None,
) -> None:
    """Do what `python -m grpo_cli ARGUMENTS` does, its end included. `path` is where it finds modules first."""
    for stream, place in zip(streams, (0, 1, 2), strict=True):
        os.dup2(stream, place)
        os.close(stream)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115, multiprocessing has closed it
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if umask is not None:
        os.umask(umask)
    ours = (ROOT, ROOT / "flows", ROOT / "tasks")
    others = [entry for entry in sys.path if Path(entry) not in (Path.cwd(), *ours)]
    given = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*path, *given, *map(str, ours), *others]
    sys.argv[1:] = arguments
    try:
        runpy.run_module("grpo_cli", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
