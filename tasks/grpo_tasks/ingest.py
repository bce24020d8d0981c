"""Sources → scenarios Parquet and quarantine Parquet."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.scenarios import Source
from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE, IngestCounts
from grpo.scenarios.ingest import ingest as ingest_sources
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage


class IngestResult(StageResult):
    """A folder with both tables, and the counts of the records."""

    scenarios: Artifact
    counts: IngestCounts


@stage
def ingest(sources: tuple[Source, ...], content: str, max_quarantined_fraction: float, store: str) -> IngestResult:
    """Read every record of the sources into one table, or into quarantine with a reason.

    `content` is the digest of the sources. If a file changes, the cache identity of the stage changes.
    """
    with ArtifactStore(store).new_folder("scenarios") as new:
        counts = ingest_sources(
            sources,
            new.path / SCENARIOS_FILE,
            new.path / QUARANTINE_FILE,
            max_quarantined_fraction=max_quarantined_fraction,
        )
    return IngestResult(scenarios=new.artifact, counts=counts)
