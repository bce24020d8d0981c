"""How episodes are played."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from grpo.config.base import Settings

_READERS = {"gpu_memory_utilization": "backend: vllm", "max_rounds": "informative_groups"}


class RolloutSettings(Settings):
    """How episodes are played."""

    backend: Literal["transformers", "vllm"] = "transformers"
    """What plays the policy: the model in this process, or a vLLM engine that its weights are loaded into."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=1)
    """What the vLLM engine takes of the GPU's memory; the learner needs the rest."""
    scenarios: int = Field(default=32, ge=1)
    """Scenarios in an iteration; the training side is gone through in a seeded order."""
    group_size: int = Field(default=8, ge=2)
    """Sibling episodes of each scenario: what an advantage is relative to."""
    temperature: float = Field(default=1.0, gt=0)
    """At which tokens are drawn; probabilities are divided by nothing else."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Most tokens in one turn of the agent."""
    on_truncation: Literal["end", "continue"] = "end"
    """What a turn that reaches max_new_tokens does: end the episode as truncated, or stand as it is."""
    max_context: int = Field(default=512, ge=16)
    """Most tokens in one episode."""
    shards: int = Field(default=1, ge=1)
    """Parts that an iteration is cut into; a shard is what is retried."""
    runner: Literal["threads", "dask"] = "threads"
    """Where shards are played: on threads of this process, or on the processes of a Dask cluster."""
    workers: int = Field(default=2, ge=1)
    """Shards that are played at once: threads, or processes of the cluster, which is started for the run."""
    dask_address: str | None = Field(default=None, pattern=r"^(tcp|tls)://.+:\d+$")
    """Scheduler of a cluster that is there already; its workers need this machine's files and environment."""
    informative_groups: int | None = Field(default=None, ge=1)
    """Play further scenarios until the siblings of so many differ in reward; none plays `scenarios`, whatever comes."""
    max_rounds: int = Field(default=3, ge=1)
    """Most rounds of `scenarios` that an iteration plays in search of informative groups."""
    staleness: Literal[0, 1] = 0
    """Updates that a rollout may be behind: with 1 the next one is played while the policy is trained on this one."""
    concurrency: int = Field(default=256, ge=1)
    """Episodes of a shard in flight at once."""
    turn_timeout_s: float = Field(default=120.0, gt=0)
    """A turn of the policy that takes longer fails its episode."""
    step_timeout_s: float = Field(default=60.0, gt=0)
    """An answer of the environment, user or tool, that takes longer fails its episode."""
    episode_timeout_s: float = Field(default=900.0, gt=0)
    """An episode that takes longer is failed, not waited for."""
    stage_timeout_s: float = Field(default=14400.0, gt=0)
    """Episodes of a shard that are not finished by then are failed, not waited for."""
    error_budget: float = Field(default=0.05, ge=0, le=1)
    """More failed episodes than this share stop the run."""

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.dask_address is not None and self.runner != "dask":
            raise ValueError(f"dask_address {self.dask_address} is not read by runner {self.runner}; set runner: dask")
        for name, read in (("gpu_memory_utilization", self.backend == "vllm"), ("max_rounds", self.informative_groups)):
            if not read and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is not read without {_READERS[name]}; leave it out")
        most = self.scenarios * self.max_rounds
        if self.informative_groups is not None and self.informative_groups > most:
            raise ValueError(
                f"informative_groups {self.informative_groups} cannot be had: {self.max_rounds} rounds of "
                f"{self.scenarios} scenarios are {most} groups; raise max_rounds or scenarios"
            )
        return self
