"""Stage 1: sources → scenarios Parquet and quarantine Parquet."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.scenarios import Source
from grpo.scenarios.ingest import QUARANTINED, SCENARIOS, Counts
from grpo.scenarios.ingest import ingest as ingest_sources
from tasks.results import StageResult
from tasks.stage import Clock, stage


class IngestResult(StageResult):
    """A folder with both tables, and what became of the records."""

    scenarios: Artifact
    counts: Counts


@stage
def ingest(sources: tuple[Source, ...], content: str, max_quarantined_share: float, store: str) -> IngestResult:
    """Read every record of the sources into one table, or into quarantine with a reason.

    `content` is the fingerprint of the sources' bytes: it makes a changed file a changed stage.
    """
    clock = Clock()
    found: list[Counts] = []

    def write(folder: Path) -> None:
        found.append(
            ingest_sources(
                sources, folder / SCENARIOS, folder / QUARANTINED, max_quarantined_share=max_quarantined_share
            )
        )

    artifact = ArtifactStore(store).put_folder("scenarios", write)
    return IngestResult(scenarios=artifact, counts=found[0], compute_s=clock.seconds)
