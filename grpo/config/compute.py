"""Where stages are computed. It changes no result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo.config.base import Settings


class GpuStages(Settings):
    """Stages that go to machines with a GPU, one flow run each; the rest stays where the run is."""

    deployment: str = Field(default="stage/gpu", pattern=r"^[^/]+/[^/]+$")
    """Deployment that runs them; its work pool's workers read and write the same `store`."""
    stages: tuple[Literal["rollout", "train", "evaluate"], ...] = Field(default=("rollout", "train"), min_length=1)
    """What is sent; of a rollout's shards `rollout.workers` at once."""


class ComputeSettings(Settings):
    """Where stages are computed."""

    gpu_stages: GpuStages | None = None
    """Stages that are sent to another work pool; none keeps all of them in the process of the run."""
