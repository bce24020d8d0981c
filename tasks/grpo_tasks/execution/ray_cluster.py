"""Ray cluster of a run: one that the run starts for itself, or one that is there already.

The run's own cluster listens on the loopback interface and asks each client for a token that this process makes. Its
files are in one private folder, which is removed after the run. If this process is killed, the kernel ends Ray's
servers, its agents end after about a minute, and the next cluster of this user removes the folder.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
import torch
from prefect.task_runners import TaskRunner
from prefect_ray.task_runners import RayTaskRunner
from ray._private import ray_constants

from grpo.environment_variables import variables_set
from grpo.errors import ConfigError
from grpo.storage.fetched import user_temp_folder
from grpo.storage.locks import scratch_path

_TOKEN = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
"""Token of the clusters that this process starts. Ray reads one token per process, which is the user's if it is set."""
_own: list[str | None] = []
"""Address of the cluster that a run of this process has connected to. It is None for the run's own cluster."""
_TRIES = 3
_TOO_SLOW = "timed out during startup"
"""In the message of Ray's error, which has no type of its own. Ray waits 30 s, and has no setting for it."""
_LONGEST_FOLDER = 107 - len("/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
"""Characters of a folder below which Ray's sockets still have addresses that the system allows."""
_RESULTS_BYTES = 100 * 2**20
"""Shared memory for results of shards. They are small, because episodes are in the store. Ray's least is 75 MiB."""


@contextmanager
def ray_runner(address: str | None, workers: int) -> Iterator[TaskRunner[Any]]:
    """Task runner on the cluster at `address`, or on a cluster of `workers` processes that lives as long as the block.

    Ray runs a shard again if its worker dies. A process has one connection to Ray. A run inside of another run uses the
    connection of the outer one.

    Raises `ConfigError` if no cluster answers at the address, if it refuses the token of RAY_AUTH_TOKEN, or if this
    process is connected to another cluster.
    """
    logging.getLogger("ray").setLevel(logging.WARNING)
    handler = signal.getsignal(signal.SIGTERM)
    with ExitStack() as stack:
        if not ray.is_initialized():
            folder = None if address else stack.enter_context(scratch_path(user_temp_folder() / "ray"))
            stack.callback(ray.shutdown, wait_for_processes=True)
            try:
                _connect(str(address)) if folder is None else _start(str(folder), workers)
            finally:
                if signal.getsignal(signal.SIGTERM) is not handler:  # a cancelled flow run needs Prefect's
                    signal.signal(signal.SIGTERM, handler)
            _own.append(address)
            stack.callback(_own.clear)
        elif _own != [address]:
            raise ConfigError(
                "this process has a connection to another Ray cluster, and Ray allows one: call ray.shutdown() before "
                "the run, or set rollout.runner to threads"
            )
        yield stack.enter_context(RayTaskRunner())


def _start(folder: str, workers: int) -> None:
    if len(folder) > _LONGEST_FOLDER:
        raise ConfigError(
            f"Ray's sockets in {folder} would have longer addresses than the system allows: set TMPDIR to a folder "
            f"with a path that is {len(folder) - _LONGEST_FOLDER} characters shorter"
        )
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # it warns that a token is asked for
    ray_constants.ENABLE_RAY_CLUSTER = False  # listen on loopback, also if ray was imported without the variable
    variables = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the same for the processes of the cluster, on each system
        "RAY_AUTH_MODE": None,  # Ray's default for a cluster that a process starts is the token
        "RAY_AUTH_TOKEN": _TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",  # its port would answer without a token
        "OMP_NUM_THREADS": str(torch.get_num_threads()),  # Ray's 1 would round products in another way
    }
    with variables_set(variables):
        for _ in range(_TRIES):
            try:
                ray.init(
                    "local",
                    num_cpus=workers,
                    include_dashboard=False,
                    object_store_memory=_RESULTS_BYTES,
                    configure_logging=False,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=folder,
                )
            except Exception as error:
                if _TOO_SLOW not in str(error):
                    raise
                ray.shutdown()  # what has started already ends with this process
            else:
                return
    raise ConnectionError(
        f"Ray has not started within 30 seconds in any of {_TRIES} tries, because this machine is too busy. Start the "
        "run again, or set rollout.runner to threads"
    )


def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()  # Ray would try for two minutes
        with variables_set({"RAY_gcs_server_port_wait_time_s": "3"}):  # tries, in each of which a wrong token fails
            ray.init(address, configure_logging=False)
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"rollout.ray_address {address} cannot be used: {error}. Start this run on a machine of the cluster, name "
            "the address that `ray status` prints there, and set RAY_AUTH_TOKEN if the cluster asks for a token"
        ) from error
