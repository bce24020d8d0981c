"""Updates in two processes against updates in one process, with whole and with sharded weights.

The processes of a test wait for the next one, because they take longer to start than to train. So tests of equal
processes follow each other, and the error that ends the processes comes last.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo.config.training import TrainingSettings
from grpo.errors import NoLearningSignal
from grpo.learner.checkpoints import OPTIMIZER, read_state, save_base
from grpo.learner.metrics import UpdateMetrics
from grpo.learner.update import update
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.policy.transformers.model_cache import model_cache
from grpo.tables import write_trajectories
from tests.checkpoint_weights import largest_difference, share_of_the_step, weights
from tests.grpo.learner.conftest import BASE, DeskRollout, distilled_update, perturbed

SHARDED = {"processes": 2, "sharding": "sharded"}


def _update(desk: DeskRollout, target: Path, *, parent: Path | None = None, **settings: object) -> UpdateMetrics:
    """Metrics of an update of the base, or of the second update, of a policy that has sampled the same."""
    scored = desk.scored
    if parent is not None:
        policy_hash = read_state(parent).policy_hash
        scored = target.with_suffix(".parquet")
        write_trajectories(scored, [replace(t, policy_hash=policy_hash) for t in desk.trajectories], provenance={})
    plan = TrainingSettings(**settings)  # type: ignore[arg-type]
    iteration = 0 if parent is None else 1
    result = update(
        [scored], parent or desk.base, desk.base, target, plan, seed=0, iteration=iteration, base_artifact=BASE
    )
    assert result.changed
    return result.metrics


def _assert_the_same_step(left: Path, right: Path, start: Path) -> None:
    assert share_of_the_step(weights(left), weights(right), weights(start)) < 3e-4


def test_uneven_shards_agree_on_the_entropy_threshold(desk_rollout: DeskRollout, tmp_path: Path):
    """Three passes for two processes with sharded weights: the one with fewer adds a pass of weight 0."""
    settings = {"learning_rate": 5e-4, "top_entropy_quantile": 0.5, "microbatch_tokens": 900}
    alone = _update(desk_rollout, tmp_path / "one", **settings)
    shared = _update(desk_rollout, tmp_path / "two", **settings, **SHARDED)
    assert shared.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-4)
    _assert_the_same_step(tmp_path / "one", tmp_path / "two", desk_rollout.base)


def test_adapters_of_a_sharded_base_are_trained_as_in_one_process(desk_rollout: DeskRollout, tmp_path: Path):
    """The KL to the base, by switching the adapters off, is in the loss. Then one process goes on from two, and two
    from one.
    """
    settings = {"lora": {"r": 4}, "beta": 0.1, "importance_sampling_cap": 2.0, "max_mismatch_kl": 1.0}
    one = _update(desk_rollout, tmp_path / "one", **settings)
    two = _update(desk_rollout, tmp_path / "two", **settings, **SHARDED)
    assert two.kl_to_base == pytest.approx(one.kl_to_base, rel=1e-3)
    assert (tmp_path / "two" / OPTIMIZER).is_file()
    model_cache._policies.clear()
    _update(desk_rollout, tmp_path / "of-two", parent=tmp_path / "two", **settings)
    _update(desk_rollout, tmp_path / "of-one", parent=tmp_path / "one", **settings, **SHARDED)
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    untrained = {name: tensor if "lora_A" in name else torch.zeros_like(tensor) for name, tensor in first.items()}
    assert share_of_the_step(first, second, untrained) < 3e-4
    assert largest_difference(first, untrained) > 9e-5
    _assert_the_same_step(tmp_path / "of-two", tmp_path / "of-one", tmp_path / "two")


def test_two_processes_with_passes_in_bfloat16_reach_the_weights_of_one(desk_rollout: DeskRollout, tmp_path: Path):
    """Float32 weights are sharded, and gathered in bfloat16. Gradients of the same passes are summed in float32."""
    shutil.copytree(desk_rollout.base, tmp_path / "base")
    save_base(load(desk_rollout.base), tmp_path / "base", dtype="bfloat16")
    desk = replace(desk_rollout, base=tmp_path / "base")
    settings = {"importance_sampling_cap": 2.0, "max_mismatch_kl": 1.0, "microbatch_tokens": 900, "beta": 0.1}
    one = _update(desk, tmp_path / "one", **settings)
    two = _update(desk, tmp_path / "two", **settings, **SHARDED)
    assert two.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)
    _assert_the_same_step(tmp_path / "one", tmp_path / "two", desk.base)
    assert {tensor.dtype for tensor in weights(tmp_path / "two").values()} == {torch.float32}
    assert read_state(tmp_path / "two").dtype == "bfloat16"
    assert load(tmp_path / "two").hash == read_state(tmp_path / "two").policy_hash


def test_two_processes_with_shares_of_the_weights_distil_as_one(desk_rollout: DeskRollout, tmp_path: Path):
    """Each reads its part of the teacher's weights. A scenario without a hint has no teacher in either."""
    policy = load(desk_rollout.base)
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    save_base(TransformersPolicy(perturbed(policy.model), policy.tokenizer), teacher)
    distillation = {"teacher_model_name_or_path": "models/teacher", "privileged_context": ["outcome"]}
    settings = {"distillation": {**distillation, "distillation_weight": 0.5}, "without_hint": 1, "teacher": teacher}
    one = distilled_update(desk_rollout, tmp_path / "one", **settings)
    two = distilled_update(desk_rollout, tmp_path / "two", **settings, **SHARDED)
    assert one.taught_share is not None
    assert 0.5 < one.taught_share < 1
    assert (two.taught_share, two.teacher_kl) == pytest.approx((one.taught_share, one.teacher_kl), rel=1e-4)
    _assert_the_same_step(tmp_path / "one", tmp_path / "two", desk_rollout.base)


@pytest.mark.parametrize("sharding", ["sharded", "replicated"])
def test_two_processes_reach_the_weights_of_one(desk_rollout: DeskRollout, tmp_path: Path, sharding: str):
    """Gloo on the CPU, each with its part of the batch, two of three passes and one: the same step, up to the order of
    additions.
    """
    settings = {"learning_rate": 5e-4, "microbatch_tokens": 900}
    alone = _update(desk_rollout, tmp_path / "one", **settings)
    shared = _update(desk_rollout, tmp_path / "two", **settings, processes=2, sharding=sharding)
    _assert_the_same_step(tmp_path / "one", tmp_path / "two", desk_rollout.base)
    assert largest_difference(weights(tmp_path / "one"), weights(desk_rollout.base)) > 1e-4
    assert shared.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-4)
    assert shared.tokens == alone.tokens
    # and one process goes on from the moments that two have left, to the same weights as from its own
    for first, then in (("one", "three"), ("two", "four")):
        parent = tmp_path / first
        _update(desk_rollout, tmp_path / then, parent=parent, learning_rate=5e-4, ratio_tolerance=10.0)
    _assert_the_same_step(tmp_path / "three", tmp_path / "four", tmp_path / "one")


def test_an_error_of_a_worker_is_raised_as_its_own_class(desk_rollout: DeskRollout, tmp_path: Path):
    """A `GRPOError` in a worker is the same error here, which is not retried."""
    equal = [replace(trajectory, terminal_reward=1.0) for trajectory in desk_rollout.trajectories]
    write_trajectories(tmp_path / "scored.parquet", equal, provenance={})
    desk = replace(desk_rollout, scored=tmp_path / "scored.parquet")
    with pytest.raises(NoLearningSignal, match="no learning signal"):
        _update(desk, tmp_path / "x", processes=2)
