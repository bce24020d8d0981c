"""Files of what `sft` and `dpo` learn from serving logs, written before a run begins."""

from __future__ import annotations

from typing import Any

from grpo.artifacts import ArtifactStore
from grpo.config.dpo import ServedPairs, WrittenPairs
from grpo.config.pipeline import PipelineConfig
from grpo.config.sft import ServedDemonstrations, WrittenDemonstrations
from grpo.scenarios.readers.served import served_digest, served_snapshot
from grpo_tasks.write_served import write_served


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
