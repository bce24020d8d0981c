from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo.algorithms.reductions import Denominators
from grpo.config.pipeline import load_config
from grpo.config.training import LoraSettings, TrainingSettings
from grpo.errors import PolicyError
from grpo.learner.batch import build_batch
from grpo.learner.estimates.empty_model import empty_model
from grpo.learner.estimates.memory import MemoryEstimate, memory_estimate
from grpo.learner.estimates.model_sizes import model_sizes
from grpo.learner.learner import Learner
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.dtype import cast_frozen
from grpo.policy.transformers.forward.kv_cache import KVCache
from grpo.policy.transformers.forward.passes import token_batch
from grpo.policy.transformers.model import load
from grpo.renderers.chat_template import Renderer
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.score import score
from grpo.trajectories import group
from tests.doubles import desk_scenarios, play_desk
from tests.places import DESK_MODEL, ROOT


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _estimate(folder: Path, training: TrainingSettings, **settings: Any) -> MemoryEstimate:
    return memory_estimate(model_sizes(folder, training, lambda: empty_model(folder, training)), training, **settings)


@pytest.mark.parametrize("lora", [None, LoraSettings(r=4)], ids=["weights", "adapters"])
def test_weights_gradients_and_optimizer_are_exact(tiny_folder: Path, lora: LoraSettings | None):
    """Those of a real model after a real step of its optimizer."""
    settings = TrainingSettings(lora=lora)
    estimate = _estimate(tiny_folder, settings, episodes=4, max_context=64)
    model = load(tiny_folder).model
    if lora is not None:
        add_adapters(model, lora, seed=0)
    learner = Learner(model, settings)
    for parameter in learner.parameters:
        parameter.grad = torch.ones_like(parameter)
    learner.optimizer.step()
    weights = list(model.parameters())
    assert estimate.weights == estimate.copies * _bytes(weights)
    assert estimate.gradients == _bytes([parameter.grad for parameter in learner.parameters])
    assert estimate.optimizer == _bytes(
        [value for state in learner.optimizer.state.values() for value in state.values()]
    )
    assert estimate.trained == sum(parameter.numel() for parameter in learner.parameters)


def test_a_trust_region_has_no_moments_and_a_parent_that_is_kept_is_another_copy(tiny_folder: Path):
    """trpo has no optimizer state; rollouts that go on with the parent add a model."""
    plain = _estimate(tiny_folder, TrainingSettings(), episodes=4, max_context=64)
    assert _estimate(tiny_folder, TrainingSettings(algorithm="trpo"), episodes=4, max_context=64).optimizer == 0
    overlapping = _estimate(tiny_folder, TrainingSettings(), episodes=4, max_context=64, keeps_parent=True)
    assert (plain.copies, overlapping.copies) == (2, 3)


def test_a_continuous_rollout_on_servers_needs_the_version_before_for_its_checks(tiny_folder: Path):
    """Another whole model in float32, which adds to the peak."""
    settings = TrainingSettings(importance_sampling_cap=2.0)
    needs = partial(_estimate, tiny_folder, settings, episodes=0, max_context=64, keeps_parent=True)
    without, estimate = needs(), needs(checks_earlier_version=True)
    assert (without.checked, estimate.checked) == (0, 4 * estimate.parameters)
    assert estimate.peak - without.peak == 4 * estimate.parameters
    assert (without.models[0], estimate.models[0]) == ("3", "4")


@pytest.mark.parametrize("lora", [None, LoraSettings(r=4)], ids=["weights", "adapters"])
def test_weights_in_bfloat16_are_counted_beside_their_float32_masters(tiny_folder: Path, lora: LoraSettings | None):
    """Of one policy: 6 bytes a weight that is trained as a whole; under adapters 2, and 4 for each of theirs."""
    settings = TrainingSettings(lora=lora, importance_sampling_cap=2.0)
    estimate = _estimate(tiny_folder, settings, episodes=4, max_context=64, dtype="bfloat16")
    policy = load(tiny_folder)
    if lora is None:
        models = [policy.model, policy.in_dtype("bfloat16").model]
    else:
        add_adapters(policy.model, lora, seed=0)
        cast_frozen(policy.model, "bfloat16")
        models = [policy.model]
    held = sum(_bytes(list(model.parameters())) for model in models)
    assert estimate.weights == estimate.copies * held


def test_the_kv_cache_is_that_of_all_episodes_at_full_length(tiny_folder: Path):
    """Keys and values in the layout of the sampler."""
    estimate = _estimate(tiny_folder, TrainingSettings(), episodes=6, max_context=48)
    model = load(tiny_folder).model
    config = model.config
    cache = KVCache(slots=6, capacity=48)
    vectors = torch.zeros(1, config.num_key_value_heads, 1, config.hidden_size // config.num_attention_heads)
    layers = [cache.layer(layer, vectors, vectors) for layer in range(config.num_hidden_layers)]
    assert estimate.cache == _bytes([part for layer in layers for part in layer])


def test_activations_are_near_those_of_a_pass():
    """Within a fifth of PyTorch's saved tensors, on episodes of the support desk."""
    config = load_config(ROOT / "data" / "configs" / "quickstart.yaml", (f"policy.model={DESK_MODEL}",))
    policy = load(DESK_MODEL)
    played = play_desk(policy, config, scenarios=4, group_size=8)
    known = {scenario.id: scenario for scenario in desk_scenarios(4)}
    scored = list(score(played, make_composite_reward(config.reward), known))
    batch = build_batch(
        group(scored),
        config.training,
        policy_hash=policy.hash,
        earlier_hashes=(),
        renderer_hash=Renderer(policy.tokenizer).hash,
    )
    samples = [sample for members in batch.groups for sample in members]
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.model.parameters()}
    learner = Learner(policy.model, config.training)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _loss, *_ = learner.loss(samples, Denominators(sequences=len(samples), tokens=1000, normalizer=256))
    measured = sum(size for place, size in kept.items() if place not in weights)
    tokens = token_batch(policy.model, samples).token_ids.shape[1]
    settings = config.training.model_copy(update={"microbatch_tokens": tokens})
    assert _estimate(DESK_MODEL, settings, episodes=1, max_context=64).activations == pytest.approx(measured, rel=0.2)


def test_a_folder_without_a_model_is_named(tmp_path: Path):
    """Before anything is computed."""
    with pytest.raises(PolicyError, match=str(tmp_path)):
        _estimate(tmp_path, TrainingSettings(), episodes=1, max_context=64)


def test_a_teacher_of_another_size_is_counted_as_it_is(tiny_folder: Path):
    """Its weights, in bfloat16 with the float32 ones that it is rounded from, and no gradient or moment."""
    training = TrainingSettings(distillation={"teacher_model_name_or_path": "models/teacher"})
    teacher = model_sizes(DESK_MODEL, training, lambda: empty_model(DESK_MODEL, training))
    for dtype, size in (("float32", 4), ("bfloat16", 6)):
        alone = _estimate(tiny_folder, training, episodes=1, max_context=64, dtype=dtype)
        taught = _estimate(tiny_folder, training, episodes=1, max_context=64, dtype=dtype, teacher=teacher)
        assert taught.weights - alone.weights == size * teacher.parameters
        assert (taught.gradients, taught.optimizer) == (alone.gradients, alone.optimizer)
        assert taught.models == f"{alone.models}, and a teacher of {teacher.parameters:,}"
