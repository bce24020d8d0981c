"""Demonstrations or preference pairs of a serving log, written to a file before `sft` or `dpo` learns from them."""

from __future__ import annotations

from typing import Any

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.dpo import ServedPairs, WrittenPairs
from grpo.config.pipeline import PipelineConfig
from grpo.config.sft import ServedDemonstrations, WrittenDemonstrations
from grpo.scenarios.readers.served import served_digest, served_snapshot
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage


class WrittenServed(StageResult):
    """A file of demonstrations or pairs, and the number of its lines."""

    written: Artifact
    used: int
    rejected: dict[str, int]
    """Conversations and corrections of the log that are not in the file, by reason."""


@stage
def write_served(source: ServedDemonstrations | ServedPairs, content: str, store: str) -> WrittenServed:
    """Write what SFT or DPO learns from a log, filtered by licence and consent and redacted.

    The file is an artifact, so that an erasure finds the conversations in it. `content` is the digest of the log.
    """
    from grpo.learner.offline.demonstrations import read_served
    from grpo.learner.offline.preferences import read_served_pairs
    from grpo.scenarios.served_tuning import write_demonstrations, write_pairs

    with ArtifactStore(store).new_file("corrections", ".jsonl") as new:
        if isinstance(source, ServedDemonstrations):
            demonstrations = read_served(source)
            write_demonstrations(new.path, demonstrations.used)
            used, rejected = len(demonstrations.used), demonstrations.rejected
        else:
            pairs = read_served_pairs(source)
            write_pairs(new.path, pairs.used)
            used, rejected = len(pairs.used), pairs.rejected
    return WrittenServed(written=new.artifact, used=used, rejected=dict(sorted(rejected.items())))


def with_written_data(config: PipelineConfig) -> PipelineConfig:
    """The config in which files take the place of the serving logs that `sft` and `dpo` read.

    The rest of the run names these files, so that it does not change when the log grows, and so that an erasure finds
    out that the run was trained on a conversation.
    """
    tuned: dict[str, Any] = {}
    if config.sft is not None and isinstance(config.sft.demonstrations, ServedDemonstrations):
        demonstrations = WrittenDemonstrations(kind="jsonl", path=_written(config.sft.demonstrations, config.store))
        tuned["sft"] = config.sft.model_copy(update={"demonstrations": demonstrations})
    if config.dpo is not None and isinstance(config.dpo.pairs, ServedPairs):
        pairs = WrittenPairs(kind="jsonl", path=_written(config.dpo.pairs, config.store))
        tuned["dpo"] = config.dpo.model_copy(update={"pairs": pairs})
    return config.model_copy(update=tuned) if tuned else config


def _written(source: ServedDemonstrations | ServedPairs, store: str) -> str:
    pinned = served_snapshot(source)
    result = write_served(source=pinned, content=served_digest(pinned), store=store)
    return ArtifactStore(store).address(result.written)
