"""New conversations, let through the gates."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import IntakeSettings
from grpo.config.scenarios import Source
from grpo.retraining.intake import CONVERSATIONS, IntakeCounts, take_in
from grpo.retraining.material import Material, judged_on
from grpo.scenarios.ingest import SCENARIOS
from grpo.scenarios.parquet import read_scenarios
from tasks.results import StageResult
from tasks.split import read_split
from tasks.stage import Clock, stage


class IntakeResult(StageResult):
    """A folder with the conversations that were accepted, seen and refused."""

    conversations: Artifact
    counts: IntakeCounts


@stage
def intake(
    sources: tuple[Source, ...],
    content: str,
    base: Artifact,
    split: Artifact,
    champion: Material | None,
    settings: IntakeSettings,
    store: str,
) -> IntakeResult:
    """Hold conversations against the gates: what is held out of `base`, and was of the champion's data, is not taken.

    `content` is the fingerprint of the sources' bytes.
    """
    clock = Clock()
    artifacts = ArtifactStore(store)
    judged = judged_on(artifacts, champion) if champion is not None else []
    table, sides = artifacts.path(base) / SCENARIOS, read_split(artifacts, split)
    found: list[IntakeCounts] = []

    def write(folder: Path) -> None:
        found.append(
            take_in(
                sources,
                folder,
                known=read_scenarios(table, ids=sides.train),
                heldout=[*read_scenarios(table, ids=sides.heldout), *judged],
                settings=settings,
            )
        )

    artifact = artifacts.put_folder(CONVERSATIONS, write)
    return IntakeResult(conversations=artifact, counts=found[0], compute_s=clock.seconds)
