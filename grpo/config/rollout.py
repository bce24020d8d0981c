"""Settings of the rollout."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from grpo.config.base import LEAST_TEMPERATURE, AppliesWhen, Placement, Settings
from grpo.config.curriculum import CurriculumSettings


class EpisodeSettings(Settings):
    """Number, sampling, length and timeouts of the episodes of an iteration."""

    scenarios: int = Field(default=32, ge=1)
    """Scenarios per iteration, from the training split in a seeded order."""
    group_size: int = Field(default=8, ge=2)
    """Episodes of each scenario: the group of an advantage."""
    trees: int | None = Field(default=None, ge=1)
    """Episodes of each group that are played from the start. Each of the others branches off from one of them, at a
    turn that is drawn by the seed (Tree-GRPO). None plays all from the start."""
    temperature: float = Field(default=1.0, ge=LEAST_TEMPERATURE, allow_inf_nan=False)
    """Sampling temperature, without top-k or top-p."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Most tokens of one turn of the agent."""
    on_truncation: Literal["end", "continue"] = "end"
    """If a turn reaches max_new_tokens, end the episode as truncated, or go on with the turn as it is."""
    max_context: int = Field(default=512, ge=16)
    """Most tokens of one episode."""
    concurrency: int = Field(default=256, ge=1)
    """Episodes of a shard that run at the same time."""
    turn_timeout_s: float = Field(default=120.0, gt=0)
    """Timeout of a turn of the policy. After it, the episode fails."""
    step_timeout_s: float = Field(default=60.0, gt=0)
    """Timeout of a step of the environment, user or tool. After it, the episode fails."""
    episode_timeout_s: float = Field(default=900.0, gt=0)
    """Timeout of an episode. After it, the episode fails."""
    stage_timeout_s: float = Field(default=14400.0, gt=0)
    """Timeout of a shard. After it, the episodes that are not finished fail."""
    reward_timeout_s: float = Field(default=1800.0, gt=0)
    """Timeout of scoring the group of a scenario. After it, the run ends."""
    error_budget: float = Field(default=0.05, ge=0, le=1)
    """Share of failed episodes above which the run stops."""

    @model_validator(mode="after")
    def _a_group_has_branches(self) -> Self:
        if self.trees is not None and self.trees >= self.group_size:
            raise ValueError(
                f"trees {self.trees} leaves no episode of a group of {self.group_size} that could branch off. "
                "Lower it, or leave it out"
            )
        return self


def equal_episodes(iterations: int, base: EpisodeSettings, changed: EpisodeSettings) -> int:
    """Number of iterations, at least 1, so that the changed settings give as many episodes as the base settings.

    20 iterations of 4 scenarios in groups of 8 are 640 episodes. In groups of 16 these are 10 iterations.
    """
    episodes = iterations * base.scenarios * base.group_size
    return max(1, round(episodes / (changed.scenarios * changed.group_size)))


def _server_address(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError("a server has an address of the form http(s)://host[:port], without a key")
    return address.rstrip("/")


Runner = Literal["threads", "dask", "ray"]
ServerAddress = Annotated[str, AfterValidator(_server_address)]
MOST_SERVERS = 64
"""Most rollout servers that a run starts."""


class StartedServers(Settings):
    """Rollout servers that the run starts on its own machine and stops at its end."""

    count: int = Field(ge=1, le=MOST_SERVERS)
    """Number of servers. Each holds two versions of the policy, and a share of the conversations."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a forward pass of each server on the CPU. None divides the cores of the machine by the number of
    servers."""
    devices: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """CUDA device of each server, as the run counts devices. If left out, every server uses the first one, if there is
    one."""

    @model_validator(mode="after")
    def _each_server_has_a_device(self) -> Self:
        if self.devices and len(self.devices) != self.count:
            raise ValueError(
                f"devices names {len(self.devices)} devices for {self.count} servers. Name one for each server"
            )
        return self


def _kind_of_servers(servers: object) -> str:
    return "started" if isinstance(servers, dict | StartedServers) else "addresses"


RolloutServers = Annotated[
    Annotated[tuple[ServerAddress, ...], Tag("addresses")] | Annotated[StartedServers, Tag("started")],
    Discriminator(_kind_of_servers),
]
"""Addresses of servers that run already, or the number of servers that the run starts."""


class RolloutSettings(EpisodeSettings):
    """Generation of the episodes of an iteration: the inference backend, shards and their execution."""

    backend: Literal["transformers", "vllm", "servers"] = "transformers"
    """Inference backend: transformers in this process, a vLLM engine in this process that loads the policy's weights,
    or `servers`."""
    servers: Annotated[RolloutServers, AppliesWhen("backend", ("servers",)), Placement()] = ()
    """Addresses of servers that take rollouts (`grpo serve` or `vllm serve`), such as http://10.0.0.7:8000, for which
    GRPO_ROLLOUT_KEY has the key, or `{count: 2}` for servers that the run starts itself. Each gets the weights of a
    rollout, and its replies are checked."""
    hedge_s: Annotated[float, AppliesWhen("backend", ("servers",)), Placement()] = Field(default=30.0, gt=0)
    """Time after which a turn that a server has not answered is also asked of another server."""
    gpu_memory_utilization: Annotated[float, AppliesWhen("backend", ("vllm",))] = Field(default=0.5, gt=0, le=1)
    """Share of the GPU's memory for the vLLM engine, or of the machine's if vLLM was built for CPUs. The learner needs
    the rest."""
    shards: int = Field(default=1, ge=1)
    """Shards per iteration. A shard is retried as a whole."""
    runner: Runner = "threads"
    """Execution of the shards: threads of this process, or processes of a cluster of Dask or Ray."""
    workers: int = Field(default=2, ge=1)
    """Shards at once: threads, or processes of the cluster that is started for the run."""
    dask_address: Annotated[str | None, AppliesWhen("runner", ("dask",))] = Field(
        default=None, pattern=r"^(tcp|tls)://.+:\d+$"
    )
    """Scheduler of a running cluster. Its workers need this machine's files and environment."""
    ray_address: Annotated[str | None, AppliesWhen("runner", ("ray",))] = Field(
        default=None, pattern=r"^[^\s/@:]+:\d+$"
    )
    """Address of a running cluster that this machine belongs to, such as 10.0.0.7:6379. Its workers need this machine's
    files and environment. RAY_AUTH_TOKEN has its token."""
    informative_groups: int | None = Field(default=None, ge=1)
    """Roll out more scenarios until this many groups have rewards that differ (DAPO's dynamic sampling). None rolls out
    only `scenarios`."""
    max_rounds: Annotated[int, AppliesWhen("informative_groups")] = Field(default=3, ge=1)
    """Most rounds of `scenarios` per iteration to get informative groups."""
    curriculum: CurriculumSettings | None = None
    """Draw the scenarios of an iteration by their success in earlier ones. None takes all scenarios equally often."""
    mode: Literal["stages", "continuous"] = "stages"
    """stages: a rollout ends before its update begins. continuous: episodes go on while the weights change, and each
    update trains on the groups that were completed first since the update before."""
    staleness: Annotated[Literal[0, 1], AppliesWhen("mode", ("stages",))] = 0
    """Updates that a rollout may lag behind. With 1, the next rollout runs during the update on this one."""
    max_staleness: Annotated[int, AppliesWhen("mode", ("continuous",))] = Field(default=4, ge=0)
    """Updates that the oldest token of an episode may lag behind the policy that trains on it. Older episodes are
    dropped. 0 gives the same policy as the mode stages."""

    @property
    def started_servers(self) -> StartedServers | None:
        """The servers that the run starts. None if it starts none."""
        return self.servers if isinstance(self.servers, StartedServers) else None

    @property
    def overlaps_updates(self) -> bool:
        """True if rollouts go on with a policy while an update trains it."""
        return self.mode == "continuous" or self.staleness > 0

    def concurrent_episodes(self, *, train: int, heldout: int) -> int:
        """Upper bound on the episodes that are generated at once.

        `train` are the episodes of an iteration, and `heldout` the held-out episodes of one policy.
        """
        windows = self.max_staleness + 1 if self.mode == "continuous" else 1
        return min(max(windows * train, heldout), self.concurrency * min(self.shards, self.workers))

    @model_validator(mode="after")
    def _servers_are_named_once(self) -> Self:
        if isinstance(self.servers, StartedServers):
            return self
        if self.backend == "servers" and not self.servers:
            raise ValueError("backend servers needs servers, for example {count: 2} or [http://10.0.0.7:8000]")
        if len(set(self.servers)) < len(self.servers):
            raise ValueError(f"servers: {', '.join(self.servers)} names a server twice. Name each server once")
        return self

    @model_validator(mode="after")
    def _started_servers_are_reached(self) -> Self:
        cluster = self.dask_address or self.ray_address
        if self.started_servers is not None and cluster is not None:
            raise ValueError(
                f"servers with a count answer only on the machine of the run, and shards of the cluster {cluster} may "
                "run on others. Leave the address out, or list servers that all machines reach"
            )
        return self

    @model_validator(mode="after")
    def _continuous_rollouts_have_one_queue(self) -> Self:
        unfit = {
            f"backend {self.backend}": self.backend == "vllm",
            f"shards {self.shards}": self.shards > 1,
            f"runner {self.runner}": self.runner != "threads",
            "informative_groups": self.informative_groups is not None,
            "curriculum": self.curriculum is not None,
            "trees": self.trees is not None,
        }
        if self.mode == "continuous" and (faults := [setting for setting, is_unfit in unfit.items() if is_unfit]):
            raise ValueError(
                "mode continuous begins groups from one queue in this process, in an order that is fixed before the "
                f"run, and replaces weights while episodes go on. It cannot be combined with {', '.join(faults)}. "
                "Leave it out, or set mode to stages"
            )
        return self

    @model_validator(mode="after")
    def _enough_scenarios_for_the_groups(self) -> Self:
        most = self.scenarios * self.max_rounds
        if self.informative_groups is not None and self.informative_groups > most:
            raise ValueError(
                f"informative_groups {self.informative_groups} cannot be reached: {self.max_rounds} rounds of "
                f"{self.scenarios} scenarios are {most} groups. Raise max_rounds or scenarios"
            )
        return self
