"""Rollout servers that a run starts on its own machine: `rollout.servers: {count: N}`.

Each server is a process of `grpo serve` on a free port of 127.0.0.1. The servers start when the first rollout is not
in the cache, so that a run of cache hits starts none, and they keep running between iterations. A thread of the run
starts a dead server again. The servers end with the run, also if the run is killed.

The run makes a key for its servers. They read its hash in a private folder. The key itself is only in the environment
of the run, where the stages read it together with the addresses, and which processes that the run starts inherit. Two
runs at once share nothing, because each has its own folder, ports and key.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from grpo import progress
from grpo.config.pipeline import ComputeSettings
from grpo.config.rollout import RolloutSettings, StartedServers
from grpo.environment_variables import variables_set
from grpo.errors import ConfigError
from grpo.policy.servers.policy import KEY, STARTED
from grpo.storage.fetched import user_temp_folder
from grpo.storage.files import storage_errors
from grpo.storage.home import home
from grpo.storage.locks import remove, scratch_path
from grpo.storage.shipped import shipped_folder
from grpo_local.managed_process import ManagedProcess, reserved_port
from grpo_local.restarts import Restarts, supervise_once
from grpo_local.service_logs import rotate_logs
from grpo_tasks.execution.executor import StageExecutor, stage_executor
from grpo_tasks.execution.retries import patient
from grpo_tasks.execution.stage import Call

logger = logging.getLogger(__name__)

_STAGES = ("rollout", "rollout_window")
_START_S = 300.0
"""Time within which a server has loaded its packages and the small model that it answers chats with."""
_LOOK_S = 0.5
_NAME = "rollout-server"
_OTHERS = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "GRPO_SERVE_DATABASE", "GRPO_SERVE_PORT", KEY, STARTED)
"""Variables of the run that its servers do not get."""


@contextmanager
def run_executor(rollout: RolloutSettings, compute: ComputeSettings | None = None) -> Iterator[StageExecutor]:
    """Run the stages that the block calls, see `stage_executor`, with the rollout servers that the settings ask for."""
    with ExitStack() as stack:
        servers = None
        if rollout.started_servers is not None:
            servers = stack.enter_context(rollout_servers(rollout.started_servers))
        prepare = None if servers is None else servers.prepare
        yield stack.enter_context(stage_executor(rollout, compute, prepare=prepare))


class RunServers:
    """The servers of one run, which start when they are needed first."""

    def __init__(self, services: Sequence[ManagedProcess]) -> None:
        self.services = tuple(services)
        self._restarts = {service.name: Restarts(service) for service in services}
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def prepare(self, calls: Sequence[Call[Any]]) -> None:
        """Start the servers if one of these calls is a rollout that has to be computed. Raises like `start`."""
        if self._watcher is not None or calls[0].stage.name not in _STAGES:
            return
        if not all(map(_is_stored, calls)):
            self.start()

    def start(self) -> None:
        """Start the servers, wait until they are ready, and restart them from then on.

        Raises `ConfigError` with the end of its log if a server ends at its start, and `TimeoutError` if one is not
        ready in time.
        """
        started = time.monotonic()
        for service in self.services:
            service.start()
        for service in self.services:
            service.wait()
        count = len(self.services)
        progress.report(
            "rollout servers", count, count, cached=0.0, started=count, seconds=round(time.monotonic() - started, 1)
        )
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="rollout servers")
        self._watcher.start()

    def stop(self) -> bool:
        """Stop all servers. Returns True if each of them was started and none has ever died."""
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        with ThreadPoolExecutor(len(self.services)) as pool:
            list(pool.map(ManagedProcess.stop, self.services))
        return self._watcher is not None and not any(restarts.deaths for restarts in self._restarts.values())

    def _watch(self) -> None:
        checks: dict[str, Callable[[], None]] = {"logs": partial(rotate_logs, self.services[0].log.parent)}
        checks |= {name: restarts.check for name, restarts in self._restarts.items()}
        while not self._ended.wait(_LOOK_S):
            supervise_once(checks)


@contextmanager
def rollout_servers(settings: StartedServers) -> Iterator[RunServers]:
    """Addresses and key of the servers in the environment while the block runs, and their end after it.

    Their logs are in `services` in the home. They are removed at the end if no server has failed, and otherwise by the
    next run that starts servers.
    """
    from grpo.serving.access.keys import KeyStore  # most runs start no servers, and need no modules of serving

    folders, logs = user_temp_folder() / "rollout-servers", home() / "services"
    with storage_errors(str(logs)):
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    with scratch_path(folders) as folder, ExitStack() as stack:
        folder.mkdir(mode=0o700)
        remove_logs_of_ended_runs(logs)
        run = f"{socket.gethostname()}-{os.getpid()}-{folder.name}"
        keys = folder / "keys.json"
        key = KeyStore(keys).create("run", ["rollout"])
        ports = [stack.enter_context(reserved_port()) for _ in range(settings.count)]
        services = [
            _service(settings, number, port, folder=folder, log=logs / f"{_NAME}-{run}-{number}.log")
            for number, port in enumerate(ports)
        ]
        servers = RunServers(services)
        with variables_set({KEY: key, STARTED: " ".join(service.url for service in services)}):
            try:
                yield servers
            finally:
                if servers.stop():
                    for service in services:
                        for log in logs.glob(f"{service.log.name}*"):
                            remove(log)


@patient
def _is_stored(call: Call[Any]) -> bool:
    """True if the result of a call is in the store, so that it need not be computed."""
    return call.stage.find(call.inputs) is not None


def _service(settings: StartedServers, number: int, port: int, *, folder: Path, log: Path) -> ManagedProcess:
    """One server. Its home is in the folder of the run's servers."""
    from grpo.config.serving import EngineSettings, RolloutServingSettings, ServeConfig

    place = folder / str(number)
    (place / "services").mkdir(mode=0o700, parents=True)
    threads = settings.threads or max(1, (os.cpu_count() or 1) // settings.count)
    config = ServeConfig(
        model=str(shipped_folder() / "models" / "desk_clerk"),
        port=port,
        keys=str(folder / "keys.json"),
        drain_s=0,
        engine=EngineSettings(threads=threads),
        rollouts=RolloutServingSettings(weights_bytes=shutil.disk_usage(folder).free),  # only this run has the key
    )
    file = place / "serve.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
    environment: dict[str, str | None] = dict.fromkeys(_OTHERS)
    environment["GRPO_HOME"] = str(place)
    if settings.devices:
        environment["CUDA_VISIBLE_DEVICES"] = _visible_device(settings.devices[number])
    return ManagedProcess(
        name=f"{_NAME}-{number}",
        home=place,
        arguments=("grpo_cli", "serve", str(file)),
        port=port,
        remedy="Start the run again, so that another port is chosen",
        environment=environment,
        started_path="/ready",
        start_timeout_s=_START_S,
        log_file=log,
        ends_with_parent=True,
    )


def _visible_device(number: int) -> str:
    """Name of a device for CUDA_VISIBLE_DEVICES. The run itself may see only some devices, and counts these."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(number)
    names = visible.split(",")
    if number >= len(names):
        raise ConfigError(
            f"rollout.servers names device {number}, and CUDA_VISIBLE_DEVICES has {len(names)}, numbered from 0. "
            "Name another device"
        )
    return names[number]


def remove_logs_of_ended_runs(logs: Path) -> None:
    """Remove logs of runs of this machine whose process has ended. Other machines may share the home."""
    for log in logs.glob(f"{_NAME}-*-*-*-*.log*"):
        host, process, _, _ = log.name.removeprefix(f"{_NAME}-").rsplit("-", 3)
        if host == socket.gethostname() and process.isdecimal() and not psutil.pid_exists(int(process)):
            remove(log)
