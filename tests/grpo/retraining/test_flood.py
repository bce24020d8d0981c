from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.config.gates import DEFAULT_GATES, ImprovementGate
from tests.grpo.retraining.flood import HONEST, POISONED, Retraining, conversations

SEEDS = 4
FLOODS: dict[str, dict[str, Any]] = {
    "one key": {"keys": 1},
    "copies under ten keys": {"keys": 10, "copied": True},
    "a category of the base": {"keys": 1, "category": "refund"},
    "a category of one's own": {"keys": 1, "category": "refunds for all"},
}
"""2,000 conversations each, all with false outcomes."""


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_promotes_no_candidate_and_blocks_none(tmp_path: Path, name: str):
    """The candidate that is better in the attacker's conversations is promoted in no seed, and the honest candidate,
    which is judged after the same flood, in all but one or in all. docs/registry.md counts ten seeds."""
    retraining = Retraining(tmp_path, conversations("attack", 2000, **FLOODS[name]))
    verdicts = [retraining.verdicts(POISONED, HONEST, seed=seed) for seed in range(SEEDS)]
    poisoned, honest = (sum(verdict == "promote" for verdict in column) for column in zip(*verdicts, strict=True))
    assert poisoned == 0
    assert honest >= SEEDS - 1


def test_two_keys_that_collude_promote_no_candidate(tmp_path: Path):
    """Different conversations, half of them under each key: without the one key those of the other decide. One seed of
    the ten that docs/registry.md counts."""
    retraining = Retraining(tmp_path, conversations("attack", 2000, keys=2))
    one = tuple(
        gate.model_copy(update={"colluding_keys": 1}) if isinstance(gate, ImprovementGate) else gate
        for gate in DEFAULT_GATES
    )
    assert retraining.verdicts(POISONED, HONEST, seed=0) == ["refuse", "promote"]
    assert retraining.verdicts(POISONED, seed=0, gates=one) == ["promote"]


def test_without_a_flood_the_honest_candidate_is_promoted(tmp_path: Path):
    """The bounds and the checks of the strata cost it nothing."""
    retraining = Retraining(tmp_path, ())
    assert [retraining.verdicts(HONEST, seed=seed) for seed in range(SEEDS)] == [["promote"]] * SEEDS
