"""Does it learn at all? A tiny random model, a reward that it can only find by trying, every algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grpo.algorithms.catalog import ALGORITHMS
from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import NoLearningSignal
from grpo.learner.checkpoints import read_state, save_base
from grpo.learner.update import update
from grpo.policy.transformers.model import load
from grpo.policy.transformers.model_cache import model_cache
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.tables import write_trajectories
from grpo.trajectories import Trajectory

SCENARIOS = [Scenario(id=text, user_responses=(text,)) for text in ("hello", "my order", "how are you", "broken")]
HALF = 160
"""Token ids below it are the good ones: half of the vocabulary."""
SETTINGS: dict[str, dict[str, object]] = {
    "trpo": {"trust_region": {"max_kl": 0.2, "damping": 0.01}},
    "dpo": {"beta": 0.1, "learning_rate": 1e-2},
}


def low_tokens(trajectory: Trajectory) -> float:
    """Share of the completion tokens below `HALF`."""
    return float((trajectory.token_ids[trajectory.loss_mask] < HALF).mean())


def _train(folder: Path, tiny: Path, reward: Callable[[Trajectory], float], **settings: object) -> list[float]:
    """Mean share of good tokens in each of fourteen iterations of 4 × 8 episodes, whatever the reward was.

    It ends early when the share has moved by 0.2, more than five standard errors of the 192 tokens of an iteration.
    """
    rate = {} if settings["algorithm"] == "trpo" else {"learning_rate": 3e-2}
    plan = TrainingSettings(**{**rate, **settings})  # type: ignore[arg-type]
    policy = load(tiny)
    base = folder / "0"
    base.mkdir(parents=True)
    save_base(policy, base)
    checkpoint, shares = base, []
    for iteration in range(14):
        policy = model_cache.get(read_state(checkpoint).policy_hash, checkpoint)
        played = collect(
            SCENARIOS,
            policy,
            ConversationEnvironment(max_turns=1),
            Renderer(policy.tokenizer),
            RolloutSettings(max_new_tokens=6),
            group_size=8,
            temperature=1.0,
            run_seed=0,
            iteration=iteration,
        )
        shares.append(float(np.mean([low_tokens(trajectory) for trajectory in played])))
        if abs(shares[-1] - shares[0]) > 0.2:
            return shares
        rows = [replace(trajectory, terminal_reward=reward(trajectory)) for trajectory in played]
        scored = folder / f"{iteration}.parquet"
        write_trajectories(scored, rows, provenance={})
        target = folder / str(iteration + 1)
        assert update([scored], checkpoint, base, target, plan, seed=0, iteration=iteration).changed
        checkpoint = target
    return shares


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_reward_rises(tmp_path: Path, tiny_folder: Path, algorithm: str):
    """From about half of the tokens to clearly more."""
    shares = _train(tmp_path, tiny_folder, low_tokens, algorithm=algorithm, **SETTINGS.get(algorithm, {}))
    assert 0.3 < shares[0] < 0.7
    assert shares[-1] > shares[0] + 0.15


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_reversed_reward_teaches_the_opposite(tmp_path: Path, tiny_folder: Path, algorithm: str):
    """The share of the good tokens falls."""
    settings = SETTINGS.get(algorithm, {})
    shares = _train(tmp_path, tiny_folder, lambda played: 1 - low_tokens(played), algorithm=algorithm, **settings)
    assert shares[-1] < shares[0] - 0.15


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_constant_reward_is_an_error(tmp_path: Path, tiny_folder: Path, algorithm: str):
    """Every advantage is 0: the update raises, and does not move the policy by noise."""
    with pytest.raises(NoLearningSignal):
        _train(tmp_path, tiny_folder, lambda _: 0.5, algorithm=algorithm, **SETTINGS.get(algorithm, {}))
