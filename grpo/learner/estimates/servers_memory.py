"""Memory estimate of the rollout servers that a run starts, and the free memory of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from grpo.config.serving import EngineSettings
from grpo.learner.estimates.memory import kv_cache_bytes
from grpo.learner.estimates.model_sizes import ModelSizes

_FLOAT32 = 4
_VERSIONS = 2
"""Versions that a server keeps: one that generates turns, and one that was or will be used."""
_ENGINE = EngineSettings()


class ServersMemory(BaseModel):
    """Bytes of each rollout server, by purpose, without Python and its packages."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    servers: int
    weights: int
    """Weights of the versions that a server holds, in float32."""
    cache: int | None
    """KV cache of its share of the episodes, an upper bound. None if the layers are not attention and gated MLPs."""

    @property
    def peak(self) -> int:
        """Bytes of one server. An unknown cache counts as 0."""
        return self.weights + (self.cache or 0)

    def describe(self, size: Callable[[int], str]) -> str:
        """Line of a dry run. `size` formats a number of bytes."""
        cache = "(unknown for this architecture)" if self.cache is None else size(self.cache)
        return (
            f"rollout servers: the run starts {self.servers} on this machine when the first rollout is computed. "
            f"Memory of each, without Python and its packages: {size(self.peak)} at its peak: weights "
            f"{size(self.weights)}, and a KV cache of at most {cache}"
        )


def servers_memory(sizes: ModelSizes, servers: int, *, episodes: int, max_context: int) -> ServersMemory:
    """Memory of one of `servers` servers, which share up to `episodes` concurrent episodes of `max_context` tokens.

    The engine has slots for some turns, and keeps the keys and values of other conversations up to a bound, both as
    `EngineSettings` has them.
    """
    share = -(-episodes // servers)
    in_slots = min(share, _ENGINE.concurrency)
    slots = kv_cache_bytes(sizes.config, episodes=in_slots, max_context=max_context)
    idle = kv_cache_bytes(sizes.config, episodes=share - in_slots, max_context=max_context)
    cache = None if slots is None or idle is None else slots + min(idle, _ENGINE.prefix_cache_bytes)
    return ServersMemory(servers=servers, weights=_VERSIONS * sizes.parameters * _FLOAT32, cache=cache)


def free_memory() -> tuple[int, int]:
    """Free and total bytes of the memory of this machine, or of its container."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    limit, used = (_kernel_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None and limit < total:
        total, free = limit, min(free, limit - used)
    return free, total


def _kernel_number(file: Path) -> int | None:
    """The number in a file of the kernel. None if the file is missing or has `max`."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
