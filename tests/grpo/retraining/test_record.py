"""What a look at the reasons says."""

from __future__ import annotations

import pytest

from grpo.retraining.intake import IntakeCounts
from grpo.retraining.reasons import Finding
from grpo.retraining.record import Look


@pytest.mark.parametrize(
    ("champion", "holds", "drifted"),
    [("desk/3", True, True), ("desk/3", False, False), (None, True, False), (None, False, False)],
)
def test_only_from_a_champion_can_the_world_drift(champion: str | None, holds: bool, drifted: bool):
    """An hourly look at an empty registry starts no training by its event."""
    finding = Finding(reason="age", holds=holds, sentence="it is old", numbers={})
    counts = IntakeCounts(records=0, accepted=0, refused={}, redacted={}, redacted_conversations=0)
    assert Look(model="desk", champion=champion, findings=(finding,), intake=counts).drifted is drifted
