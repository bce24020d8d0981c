"""Process group of a distributed update, and what its processes and its nodes exchange.

The machines of an update are its nodes. `grpo.learner.worker_group` starts the processes on one machine or on the first
of several, and `grpo.learner.nodes` on the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import distributed, nn

from grpo.artifacts import Artifact
from grpo.config.renderer import RendererSettings
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError

T = TypeVar("T")

METRICS, ERROR, MEETING, REQUEST = "metrics.json", "error.json", "meeting", "request.json"
NODES = "GRPO_NODES"
"""Environment variable with the folder that all nodes see."""
UPDATE_PREFIX = "update-"
"""Begin of the names of the folders of updates in the folder of the nodes."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Rank and size of the processes that share an update. Size 1 needs no communication."""

    rank: int = 0
    size: int = 1

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part: every size-th item."""
        return items[self.rank :: self.size]

    def gather(self, items: Sequence[T]) -> list[T]:
        """The items of all processes, by rank."""
        if self.size == 1:
            return list(items)
        parts: list[Any] = [None] * self.size
        distributed.all_gather_object(parts, list(items))
        return list(chain.from_iterable(parts))

    def any(self, flag: bool) -> bool:
        """True if the flag is set in any process."""
        return any(self.gather([flag]))

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of all processes in place. A process without a pass adds zeros."""
        if self.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.flatten() for parameter in trained if parameter.grad is not None])
        distributed.all_reduce(flat)
        for parameter, part in zip(trained, torch.split(flat, [p.numel() for p in trained]), strict=True):
            parameter.grad = part.view_as(parameter)


class UpdateRequest(BaseModel):
    """Arguments of an update, for each of its processes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scored: tuple[Path, ...]
    parent: Path
    base: Path
    target: Path
    settings: TrainingSettings
    seed: int
    iteration: int
    base_artifact: Artifact | None
    renderer: RendererSettings | None = None
    """Renderer of the rollouts, if it is not the chat template's."""
    samplers: tuple[str, ...] = ()
    """Earlier policies of a continuous rollout, see `grpo.learner.update.update`."""
    keep_parent: bool = False
    """Train a copy, because rollouts go on with the parent."""
    teacher: Path | None = None
    """Checkpoint of the teacher of a distillation, if it is another model."""
    hints: dict[str, str] = {}
    """Hints of the scenarios, which only the teacher reads, by the id of the scenario."""
    sources: str | None = None
    """Digest of the first node's sources. Other nodes refuse the update if theirs differ."""


class ErrorReport(BaseModel):
    """Error of a worker: class name and message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    message: str


class WorkerLost(BrokenExecutor):
    """Raised if a process of an update died. The checkpoint is unchanged, so the update can be retried."""


class WorkerFailed(RuntimeError):
    """Raised if a process of an update ended with an error that would occur again in a retry."""


def nodes_folder() -> Path:
    """Folder of GRPO_NODES. Raises `ConfigError` if it is not set, or not a folder that only its owner can write."""
    place = os.environ.get(NODES)
    if not place:
        raise ConfigError(
            f"training.nodes needs {NODES}, a folder that all nodes see at the same path. Set it on each node"
        )
    folder = Path(place).absolute()
    if not folder.is_dir():
        raise ConfigError(f"{NODES} names {folder}, which is not a folder. Make it, or mount it on this node")
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise ConfigError(
            f"{NODES} names {folder}, which others can write to. What is in it is run: make it yours only, with chmod "
            f"700 {folder}"
        )
    return folder


def check_devices(settings: TrainingSettings) -> None:
    """Raise `ConfigError` if this machine has too few accelerators, or names no network for its nodes."""
    if torch.cuda.is_available() and settings.processes > torch.cuda.device_count():
        raise ConfigError(
            f"training.processes is {settings.processes}, but this machine has {torch.cuda.device_count()} "
            "accelerators. Lower it, because each process needs one"
        )
    variable = "NCCL_SOCKET_IFNAME" if torch.cuda.is_available() else "GLOO_SOCKET_IFNAME"
    if settings.nodes > 1 and not os.environ.get(variable):
        raise ConfigError(
            f"{variable} is not set, so training.nodes {settings.nodes} would use any network. Set it to the interface "
            "of a network that only the nodes reach, because their connections are not encrypted and ask for no login"
        )
