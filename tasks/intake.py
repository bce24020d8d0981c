"""New conversations, let through the gates."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import Source
from grpo.retraining.curation import CONVERSATIONS, CurationCounts, curate_conversations
from grpo.retraining.data_lineage import TrainingData, evaluation_scenarios
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from tasks.results import StageResult
from tasks.split import read_split
from tasks.stage import Clock, stage


class IntakeResult(StageResult):
    """A folder with the conversations that were accepted, seen and refused."""

    conversations: Artifact
    counts: CurationCounts


@stage
def intake(
    sources: tuple[Source, ...],
    content: str,
    base: Artifact,
    split: Artifact,
    champion: TrainingData | None,
    settings: CurationSettings,
    store: str,
) -> IntakeResult:
    """Hold conversations against the gates: what is held out of `base`, and was of the champion's data, is not taken.

    `content` is the fingerprint of the sources' bytes.
    """
    clock = Clock()
    artifacts = ArtifactStore(store)
    judged = evaluation_scenarios(artifacts, champion) if champion is not None else []
    table, sides = artifacts.path(base) / SCENARIOS_FILE, read_split(artifacts, split)
    found: list[CurationCounts] = []

    def write(folder: Path) -> None:
        found.append(
            curate_conversations(
                sources,
                folder,
                known=read_scenarios(table, ids=sides.train),
                heldout=[*read_scenarios(table, ids=sides.heldout), *judged],
                settings=settings,
            )
        )

    artifact = artifacts.put_folder(CONVERSATIONS, write)
    return IntakeResult(conversations=artifact, counts=found[0], compute_s=clock.seconds)
