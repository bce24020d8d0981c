"""Every shipped config of the order desk takes a step on a real rollout of the embedded model."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo.algorithms.reductions import Denominators
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.learner.learner import Learner
from grpo.learner.samples import build_batch, deal
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.rewards.composite import make_reward
from grpo.rewards.score import score
from grpo.trajectories import Trajectory, group
from tests.doubles import play_desk

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = {
    path.stem: load_config(path)
    for path in sorted((ROOT / "data" / "configs").glob("*.yaml"))
    if load_config(path).environment.kind == "support_desk"
}


@pytest.fixture(scope="module")
def played() -> tuple[TransformersPolicy, list[Trajectory]]:
    """Four siblings of each of six scenarios, scored as the quickstart does."""
    config = CONFIGS["quickstart"]
    policy = load(ROOT / "data" / "models" / "desk_clerk")
    trajectories = play_desk(policy, config, scenarios=6, siblings=4)
    return policy, list(score(trajectories, make_reward(config.reward)))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_step_changes_the_weights(config: PipelineConfig, played: tuple[TransformersPolicy, list[Trajectory]]):
    """On-policy, with the ratio checked, by the config's own settings."""
    policy, trajectories = played
    batch = build_batch(group(trajectories), config.training, policy_hash=policy.hash)
    model = copy.deepcopy(policy.model)
    hands = deal(batch.groups, per_hand=config.training.groups_per_step, rng=np.random.default_rng(0))
    of = Denominators(
        sequences=batch.sample_count, tokens=batch.token_count, normalizer=config.training.length_normalizer
    )
    metrics = Learner(model, config.training).step(hands[0], of, on_policy=True)
    assert metrics["gradient_norm"] > 0
    before, after = policy.model.state_dict(), model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
