"""Successes of the scenarios so far → JSON, from which the next rollout draws its scenarios."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.curriculum import CurriculumSettings
from grpo.rollout.curriculum import Curriculum
from grpo.tables import read_all
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage


class CurriculumResult(StageResult):
    """The curriculum after an iteration."""

    curriculum: Artifact
    open_levels: tuple[str, ...]
    """Categories that the next iteration may draw from, if levels are set."""


@stage
def curriculum(
    previous: Artifact | None, scored: tuple[Artifact, ...], settings: CurriculumSettings, store: str
) -> CurriculumResult:
    """Add the scored rounds of an iteration to the curriculum before it. There is none before the first iteration."""
    artifacts = ArtifactStore(store)
    episodes = read_all([artifacts.path(artifact) for artifact in scored])
    after = read_curriculum(artifacts, previous).after(episodes, settings)
    with artifacts.new_file("curriculum", ".json") as new:
        new.path.write_text(after.model_dump_json(), encoding="utf-8")
    return CurriculumResult(curriculum=new.artifact, open_levels=settings.levels[: after.open_levels])


def read_curriculum(artifacts: ArtifactStore, artifact: Artifact | None) -> Curriculum:
    """Read a curriculum back. Without an artifact it is the one before the first iteration."""
    if artifact is None:
        return Curriculum()
    return Curriculum.model_validate_json(artifacts.path(artifact).read_bytes())
