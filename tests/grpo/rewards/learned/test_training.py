from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.rewards.learned.network import read_network
from grpo.rewards.learned.training import held_out_mask, train_on_labels, train_on_pairs
from grpo.scenarios.reward_data import LabelledReply, read_labels, read_pairs
from tests.grpo.rewards.learned.polite_replies import message
from tests.places import PUBLISHED


def test_training_on_pairs_orders_held_out_pairs(polite: Path):
    """Above 80 % of 100 held-out pairs."""
    _, card = read_network(polite)
    assert card.heldout is not None
    assert card.heldout.low > 0.8


def test_groups_are_held_out_whole():
    """No group is on both sides, the split is stable, and a single group cannot be split."""
    groups = [f"g{index % 40}" for index in range(200)]
    held = held_out_mask(groups)
    sides = {(group, bool(out)) for group, out in zip(groups, held, strict=True)}
    assert len(sides) == 40
    assert (held == held_out_mask(groups)).all()
    assert sum(held_out_mask(groups, part=part).sum() for part in range(5)) == 200
    with pytest.raises(DataError, match="of 1 groups"):
        held_out_mask(["one"] * 5)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no real data in {PUBLISHED}")
def test_real_preferences_are_learned(tmp_path: Path):
    """HH-RLHF: the held-out accuracy beats guessing; docs/internals/rewards.md has the whole measure."""
    pairs = read_pairs("hh_rlhf_harmless", PUBLISHED / "hh_rlhf_harmless").items[:1000]
    held = held_out_mask([pair.prompt[0].content for pair in pairs], part=1)
    sides = [[pair for pair, out in zip(pairs, held, strict=True) if out == side] for side in (False, True)]
    card = train_on_pairs(*sides, tmp_path, split="a fifth")
    assert card.heldout is not None
    assert card.heldout.value > 0.54


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no real data in {PUBLISHED}")
def test_judged_steps_of_real_dialogues_are_learned(tmp_path: Path):
    """Taskmaster-4, whole dialogues held out: AUC above .58; docs/internals/rewards.md has the whole measure."""
    steps = [item for item in read_labels("taskmaster", PUBLISHED / "taskmaster").items if item.category == "tm4"]
    held = held_out_mask([json.dumps([message.content for message in item.prompt[:2]]) for item in steps])
    sides = [[item for item, out in zip(steps, held, strict=True) if out == side] for side in (False, True)]
    card = train_on_labels(*sides, tmp_path, split="a fifth")
    assert card.heldout is not None
    assert card.heldout.value > 0.58


def test_labels_without_a_score_are_refused(tmp_path: Path):
    """A label without a score has no order."""
    item = LabelledReply(
        id="i", group="g", prompt=(message("user", "a"),), reply=message("assistant", "b"), label="odd",
        category="c", source="made up", licence="none",
    )  # fmt: skip
    with pytest.raises(DataError, match="reply i has a label without a score"):
        train_on_labels([item], [item], tmp_path, split="none")
