"""Demonstrations or preference pairs of a serving log, for the training of a run."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.dpo import ServedPairs
from grpo.config.sft import ServedDemonstrations
from grpo_tasks.results import StageResult
from grpo_tasks.stage import stage


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
    from grpo.learner.demonstrations import read_served
    from grpo.learner.preferences import read_served_pairs
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
