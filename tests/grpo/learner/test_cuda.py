"""On a CUDA device: what it computes is what the CPU computes, and an update repeated there is the same to the bit.

`make gpu` runs these; elsewhere the tests hide the devices, because their expectations are those of a CPU.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from grpo.config.training import TrainingSettings
from grpo.learner.checkpoints import read_state
from grpo.learner.logprobs import compute_logprobs
from grpo.learner.metrics import UpdateMetrics
from grpo.learner.update import update
from grpo.policy.transformers.device import move_to_device
from grpo.policy.transformers.model import load
from tests.grpo.learner.conftest import BASE, DeskRollout
from tests.grpo.learner.test_learner import make_samples

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible")

SETTINGS = [
    {},
    {"precision": "bf16", "importance_sampling_cap": 2.0},
    {"lora": {"r": 4}},
    {"algorithm": "ppo"},
    {"beta": 0.05, "microbatch_tokens": 512},
    {"gradient_checkpointing": True},
]


def _update(desk: DeskRollout, target: Path, **settings: object) -> UpdateMetrics:
    plan = TrainingSettings(learning_rate=5e-4, **settings)  # type: ignore[arg-type]
    return update([desk.scored], desk.base, desk.base, target, plan, seed=0, iteration=0, base_artifact=BASE).metrics


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_update_repeated_gives_the_same_weights(desk_rollout: DeskRollout, tmp_path: Path, settings: dict):
    """A run that is killed and resumed ends at the same policy; kernels that add in any order would not."""
    hashes = set()
    for name in ("first", "second"):
        _update(desk_rollout, tmp_path / name, **settings)
        hashes.add(read_state(tmp_path / name).policy_hash)
    assert len(hashes) == 1


def test_log_probabilities_are_those_of_the_cpu(tiny_folder: Path):
    """Within float32's rounding: kernels add in another order."""
    on_cuda, on_cpu = (
        load(tiny_folder),
        move_to_device(load(tiny_folder), dtype="float32", device="cpu", attention="sdpa"),
    )
    assert (on_cuda.model.device.type, on_cpu.model.device.type) == ("cuda", "cpu")
    samples = make_samples(on_cpu)
    with torch.no_grad():
        there, here = (compute_logprobs(policy.model, samples).logprobs.cpu() for policy in (on_cuda, on_cpu))
    np.testing.assert_allclose(there, here, atol=1e-4)


def test_the_log_probabilities_of_a_rollout_are_those_of_the_learner(desk_rollout: DeskRollout, tmp_path: Path):
    """The rollout was played on the device: the ratio of the first step is 1 within rounding."""
    metrics = _update(desk_rollout, tmp_path / "updated")
    assert metrics.ratio == pytest.approx(1.0, abs=1e-3)
    assert metrics.clip_share == 0.0
    assert metrics.gradient_norm > 0.0
