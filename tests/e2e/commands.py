"""Commands of the project, each in a process forked from one that has imported the slow packages of others.

A fork has nothing of the project: it imports it with its own environment, and is killed like any other process. It
is spared the eight seconds of torch, transformers, MLflow and the packages of Prefect.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.places import ROOT

_PACKAGES = (
    *("torch", "transformers.modeling_utils", "matplotlib.figure", "sklearn", "pyarrow.parquet", "mlflow.pyfunc"),
    *("mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store", "alembic.command"),
    *("griffe", "pydantic_settings", "pendulum", "rich.progress", "rich.table", "rich.traceback", "typer", "httpx"),
    *("websockets.asyncio.client", "coolname", "graphviz", "prometheus_client", "jsonschema", "fsspec"),
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
    """Start `grpo ARGUMENTS` with this environment and nothing of the caller's."""
    output.write_text("", encoding="utf-8")
    process = _context.Process(
        target=_run, args=(arguments, dict(environment), str(output), str(cwd)), name=f"grpo {' '.join(arguments)}"
    )
    process.start()
    return Command(process, output)


def _run(arguments: tuple[str, ...], environment: dict[str, str], output: str, cwd: str) -> None:
    """Do what `python -m grpo_cli ARGUMENTS` does, its end included."""
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    ours = (ROOT, ROOT / "flows", ROOT / "tasks")
    others = [path for path in sys.path if Path(path) not in (Path.cwd(), *ours)]
    sys.path[:] = [cwd, *environment["PYTHONPATH"].split(os.pathsep), *map(str, ours), *others]
    sys.argv[1:] = arguments
    try:
        runpy.run_module("grpo_cli", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
