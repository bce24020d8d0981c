"""Cost of a remote stage over its work, with a worker on loopback: fresh processes, and forked ones."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from grpo.config.pipeline import PipelineConfig
from grpo_local import settings
from grpo_local.managed_process import free_port
from grpo_local.workers.fork_server import IDLE_MINUTES
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import Call, Executor, executed_by
from tests.benchmarks.measure import apart, seconds
from tests.benchmarks.page import Findings, Table
from tests.doubles import short_run
from tests.places import ROOT

R = TypeVar("R", bound=StageResult)

ITERATIONS = 5
"""The first one is left out of the medians, because the process that others are forked from starts in it."""
SENT = ("rollout", "train")
SIDES = {"a fresh process for each stage": "0", "forked processes": "30"}
"""Minutes after which a fork server without a stage ends."""


@dataclass(frozen=True)
class _Measured:
    """An executor that times each stage that it sends."""

    remote: Executor
    walls: dict[str, list[float]] = field(default_factory=dict)
    works: dict[str, list[float]] = field(default_factory=dict)

    def run(self, calls: Sequence[Call[R]]) -> list[R]:
        """Results of the calls."""
        results: list[R] = []
        wall = seconds(lambda: results.extend(self.remote.run(calls)))
        if (name := calls[0].stage.name) in SENT:
            self.walls.setdefault(name, []).append(wall)
            self.works.setdefault(name, []).append(results[0].compute_s)
        return results

    def start(self, call: Call[R]) -> Callable[[], R]:
        """The call in the background, which this run does not use."""
        return self.remote.start(call)


def measure() -> Findings:
    """A run sends its rollouts and updates to a worker on this machine, which forks their processes or does not."""
    rows: list[tuple[str, ...]] = []
    for side, minutes in SIDES.items():
        with TemporaryDirectory() as folder:
            measured = apart(_run, Path(folder), minutes)
        rows += [(side, *_row(stage, measured[0][stage], measured[1][stage])) for stage in SENT]
    head = ("worker", "stage", "work s", "stage s", "over its work s", "most over it s", "first stage s")
    return Findings(
        title="Remote stages",
        text=(
            "Rollouts and updates of the shipped model, sent to a worker of `grpo up` on the same machine, with one "
            "thread. A stage lasts from the call in the run until its result is there, its work is the time that its "
            "function takes on the worker, which includes packages that it imports and the model that it loads. "
            f"Medians of {ITERATIONS - 1}; the first stage of each kind is in the last column, and in no median."
        ),
        tables=(Table(head=head, rows=tuple(rows)),),
    )


def _row(stage: str, walls: Sequence[float], works: Sequence[float]) -> tuple[str, ...]:
    over = [wall - work for wall, work in zip(walls[1:], works[1:], strict=True)]
    medians = [f"{statistics.median(part):.2f}" for part in (works[1:], walls[1:], over)]
    return (stage, *medians, f"{max(over):.2f}", f"{walls[0]:.1f}")


def _run(home: Path, minutes: str) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of the stages in the run, and of their functions on the worker."""
    os.environ.update(settings.home_variables(home))
    os.environ |= {"PREFECT_SERVER_API_PORT": str(free_port()), "OMP_NUM_THREADS": "1", IDLE_MINUTES: minutes}
    settings.apply()
    from grpo_local.deployments import deploy
    from grpo_local.servers import prefect_server
    from grpo_local.stack import worker_service

    with prefect_server(home) as url:
        deploy(ROOT / "prefect.yaml")
        worker = worker_service(home, "gpu", prefect_url=url, mlflow_url=os.environ["MLFLOW_TRACKING_URI"])
        worker.start()
        try:
            worker.wait()
            measured = _train(home)
        finally:
            worker.stop(at_once=True)
    return measured.walls, measured.works


def _train(home: Path) -> _Measured:
    from prefect import flow

    from grpo_flows.pipeline import base_policy, prepare_scenarios, training_steps
    from grpo_tasks.execution.executor import stage_executor

    sections: dict[str, Any] = {
        "rollout": {"shards": 1},
        "training": {"iterations": ITERATIONS},
        "compute": {"gpu_stages": {"deployment": "stage/gpu", "stages": list(SENT)}},
    }
    config = PipelineConfig.model_validate(short_run(home, **sections))
    (home / "store").mkdir()
    measured: list[_Measured] = []

    @flow
    def run() -> None:
        with stage_executor(config.rollout, config.compute) as executor:
            measured.append(_Measured(executor))
            with executed_by(measured[0]):
                data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
                base = base_policy(config.policy, config.store)
                for _ in training_steps(config, data.split, base):
                    pass

    run()
    return measured[0]
