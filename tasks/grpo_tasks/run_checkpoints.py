"""Retention of a run's checkpoints: the newest are kept, and older ones are removed while the run goes on.

The checkpoints belong to the name of the run, so that only one config of a name is trained at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.errors import ConfigError
from grpo.identity.cache_identity import short_digest
from grpo.registry.retention import REGISTERED, Retention, run_owner
from grpo.storage.home import home
from grpo.storage.locks import same_use
from grpo_tasks.execution.retries import patient
from grpo_tasks.load_base import Checkpoint
from grpo_tasks.registry import registry


class RunCheckpoints:
    """The newest checkpoints of a run, which stay in the store. Older ones are removed."""

    def __init__(self, config: PipelineConfig, base: Checkpoint) -> None:
        self.removed: list[Artifact] = []
        self._limit = config.save_total_limit
        self._keeper = run_owner(config.name)
        self._retention = Retention(ArtifactStore(config.store))
        self._base = base.checkpoint
        self._checkpoints: list[Artifact] = []
        self._keep_registered(config.store)

    def add(self, checkpoint: Artifact) -> None:
        """Keep a new checkpoint, and release the one that is over the limit."""
        if checkpoint in (self._base, *self._checkpoints[-1:]):
            return  # an iteration without an update
        self._keep(checkpoint)
        self._checkpoints.append(checkpoint)
        if self._limit is not None and len(self._checkpoints) > self._limit:
            self._release(self._checkpoints[-self._limit - 1])

    def restart(self) -> None:
        """Reset the list before a recomputation. The earlier checkpoints are released at the end of the run."""
        self._checkpoints = []

    def release_earlier_runs(self) -> None:
        """Release the checkpoints that earlier runs of this name kept."""
        for checkpoint in self._kept():
            if checkpoint not in self._checkpoints:
                self._release(checkpoint)

    @patient
    def _keep_registered(self, store: str) -> None:
        for checkpoint in registry().checkpoints(store):
            self._retention.keep(checkpoint, REGISTERED)

    @patient
    def _keep(self, checkpoint: Artifact) -> None:
        self._retention.keep(checkpoint, self._keeper)

    @patient
    def _kept(self) -> list[Artifact]:
        return self._retention.kept(self._keeper)

    @patient
    def _release(self, checkpoint: Artifact) -> None:
        if self._retention.release(checkpoint, self._keeper) and checkpoint not in self.removed:
            self.removed.append(checkpoint)


@contextmanager
def name_in_use(config: PipelineConfig) -> Iterator[None]:
    """Refuse a run if another config of its name is being trained in this home.

    Both would write the report of that name, and the first to end would release the checkpoints of the other one. Runs
    of one config share their results, so that they may run at once.
    """
    with same_use(home() / "services" / "runs" / config.name, short_digest(config.model_dump(mode="json"))) as is_free:
        if not is_free:
            raise ConfigError(
                f"a run named {config.name} with other settings is in progress in {home()}. Wait until it has ended, "
                "or give this run another name, e.g. by --set name=NAME"
            )
        yield
