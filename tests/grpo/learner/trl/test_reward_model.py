from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from grpo.errors import DataError, PolicyError
from grpo.learner.trl.dpo_trainer import TokenizedPair
from grpo.learner.trl.reward_model import RewardModelReport, reward, train_reward_model

GOOD, BAD = 40, 41  # tokens that only the better and only the worse sides have


def labelled(count: int, *, shuffled: bool = False, seed: int = 4) -> list[TokenizedPair]:
    """Random conversations whose better side says GOOD and whose worse side says BAD; labels may be drawn by lot."""
    rng = np.random.default_rng(seed)
    pairs = []
    for index in range(count):
        sides = []
        for word in (GOOD, BAD):
            ids = rng.integers(60, 200, int(rng.integers(4, 9))).astype(np.int32)
            ids[rng.integers(1, len(ids))] = word
            sides.append(ids)
        chosen, rejected = reversed(sides) if shuffled and rng.random() < 0.5 else sides
        pairs.append(
            TokenizedPair(
                prompt_ids=rng.integers(60, 200, 4).astype(np.int32),
                chosen_ids=chosen,
                chosen_mask=np.ones(len(chosen), dtype=np.bool_),
                rejected_ids=rejected,
                rejected_mask=np.ones(len(rejected), dtype=np.bool_),
                scenario_id=f"s{index}",
            )
        )
    return pairs


@pytest.fixture(scope="module")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RewardModelReport, Path]:
    folder = tmp_path_factory.mktemp("reward")
    report = train_reward_model(
        labelled(120), tiny_folder, folder, learning_rate=3e-3, epochs=3, validation_fraction=0.3
    )
    return report, folder


def test_what_makes_conversations_better_is_learned(trained: tuple[RewardModelReport, Path]):
    """Held-out accuracy beats chance by more than its interval, and so does the loss beat ln 2."""
    report, _ = trained
    assert (report.trained_pairs, report.heldout_pairs) == (84, 36)
    assert report.low > 0.5
    assert report.loss < math.log(2)


def test_labels_drawn_by_lot_teach_nothing(tiny_folder: Path, tmp_path: Path):
    """With the same pairs in random order chance stays within the interval."""
    pairs = labelled(120, shuffled=True)
    report = train_reward_model(
        pairs, tiny_folder, tmp_path / "reward", learning_rate=3e-3, epochs=3, validation_fraction=0.3
    )
    assert report.low <= 0.5 <= report.high


def test_a_saved_reward_model_tells_new_conversations_apart(trained: tuple[RewardModelReport, Path]):
    """The folder holds safetensors with one output, which transformers loads by itself."""
    _, folder = trained
    assert not list(folder.glob("*.bin"))
    model = AutoModelForSequenceClassification.from_pretrained(folder, use_safetensors=True).eval()
    pairs = labelled(40, seed=5)
    better = [
        reward(model, np.concatenate([p.prompt_ids, p.chosen_ids]))
        > reward(model, np.concatenate([p.prompt_ids, p.rejected_ids]))
        for p in pairs
    ]
    assert sum(better) > 0.8 * len(pairs)


def test_the_same_seed_gives_the_same_model(tiny_folder: Path, tmp_path: Path):
    """Bit by bit, whatever random numbers were drawn before."""
    for name in ("one", "two"):
        torch.rand(7)
        train_reward_model(labelled(20), tiny_folder, tmp_path / name, validation_fraction=0.5, seed=3)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_pairs_of_one_scenario_cannot_judge_themselves(tiny_folder: Path, tmp_path: Path):
    """Nothing can be held out when all pairs come from one scenario: an error, not an accuracy on trained pairs."""
    pair = labelled(1)[0]
    with pytest.raises(DataError, match="of 1 scenarios leaves 1 to train on and 0 to be judged by"):
        train_reward_model([pair] * 6, tiny_folder, tmp_path / "reward")


def test_a_folder_without_safetensors_is_refused(tiny_folder: Path, tmp_path: Path):
    """A tokenizer alone is no base."""
    for path in tiny_folder.glob("tokenizer*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(PolicyError, match=r"no \*\.safetensors"):
        train_reward_model(labelled(10), tmp_path, tmp_path / "reward")
