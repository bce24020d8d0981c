"""Reports of triggers and retrainings."""

from __future__ import annotations

import pytest

from grpo.retraining.curation import CurationCounts
from grpo.retraining.reports import TriggerReport
from grpo.retraining.triggers import TriggerResult


@pytest.mark.parametrize(
    ("champion", "fired", "drifted"),
    [("desk/3", True, True), ("desk/3", False, False), (None, True, False), (None, False, False)],
)
def test_drift_needs_a_champion(champion: str | None, fired: bool, drifted: bool):
    """An hourly check of an empty registry emits no event."""
    result = TriggerResult(reason="age", fired=fired, explanation="it is old", numbers={})
    counts = CurationCounts(records=0, accepted=0, rejected={}, redacted={}, redacted_conversations=0)
    assert TriggerReport(model="desk", champion=champion, results=(result,), curation=counts).drifted is drifted
