"""Curation with a store of its own for the parts of days."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import Source
from grpo.retraining.curation import DAYS, CurationCounts, curate_conversations
from grpo.scenario import Scenario
from grpo_tasks.execution.parts import StoredParts


def curate(
    sources: Sequence[Source],
    folder: Path,
    *,
    known: Iterable[Scenario] = (),
    heldout: Iterable[Scenario] = (),
    settings: CurationSettings,
) -> CurationCounts:
    """Curate into a folder; the parts are in its folder `store`."""
    parts = StoredParts(str(folder / "store"), DAYS)
    return curate_conversations(sources, folder, known=known, heldout=heldout, settings=settings, parts=parts)
