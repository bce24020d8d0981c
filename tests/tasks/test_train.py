from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PolicySettings
from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import NoLearningSignal
from grpo.policy.transformers.model import load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.tables import write_trajectories
from grpo_tasks.load_base import Checkpoint, load_base
from grpo_tasks.train import TrainResult, train
from tests.doubles import put_file


@pytest.fixture
def start(tiny_folder: Path, tmp_path: Path) -> Checkpoint:
    return load_base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=str(tmp_path))


def _train(start: Checkpoint, tiny_folder: Path, store: Path, *, iteration: int) -> TrainResult:
    """An update on two siblings that got the same reward."""
    policy = load(tiny_folder)
    played = collect(
        [Scenario(id="s", user_responses=("hello",))],
        policy,
        ConversationEnvironment(max_turns=1),
        Renderer(policy.tokenizer),
        RolloutSettings(max_new_tokens=4),
        group_size=2,
        temperature=1.0,
        run_seed=0,
        iteration=iteration,
    )
    rows = [replace(trajectory, terminal_reward=1.0) for trajectory in played]
    scored = put_file(
        ArtifactStore(str(store)), "scored", ".parquet", lambda path: write_trajectories(path, rows, provenance={})
    )
    return train.fn(
        scored=(scored,),
        parent=start.checkpoint,
        base=start.checkpoint,
        settings=TrainingSettings(),
        renderer=None,
        iteration=iteration,
        seed=0,
        store=str(store),
    )


def test_a_first_rollout_that_teaches_nothing_ends_the_run(start: Checkpoint, tiny_folder: Path, tmp_path: Path):
    """There is nothing to go on with."""
    with pytest.raises(NoLearningSignal, match="no learning signal"):
        _train(start, tiny_folder, tmp_path, iteration=0)


def test_a_later_one_leaves_the_policy_as_it_is(start: Checkpoint, tiny_folder: Path, tmp_path: Path):
    """The checkpoint is the parent's; no step was taken, and what the policy itself shows is measured."""
    result = _train(start, tiny_folder, tmp_path, iteration=1)
    assert isinstance(result.checkpoint, Artifact)
    assert result.checkpoint == start.checkpoint
    assert result.policy == start.policy
    metrics = result.metrics
    assert (metrics.informative_share, metrics.tokens, metrics.gradient_norm) == (0, 0, None)
    assert metrics.entropy > 1
    assert metrics.kl_to_base == pytest.approx(0, abs=1e-9)
