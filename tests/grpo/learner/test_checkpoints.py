"""Contents of checkpoints, and learners and policies that continue from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.errors import PolicyError
from grpo.learner.checkpoints import (
    OPTIMIZER,
    OPTIMIZER_SHARDS,
    STATE,
    CheckpointState,
    load_policy,
    read_state,
    resume,
    save,
    save_base,
)
from grpo.learner.distributed import ProcessGroup
from grpo.learner.inference_backend import make_inference_backend
from grpo.learner.learner import Learner
from grpo.learner.logprobs import local_logprobs
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.policy.transformers.model_cache import model_cache
from grpo.policy.transformers.sharding import gather_full, shard_model
from tests.doubles import put_folder
from tests.grpo.learner.conftest import BASE
from tests.grpo.learner.test_learner import make_samples, whole


def _stepped(policy: TransformersPolicy, **settings: object) -> Learner:
    """A learner that has taken one step."""
    learner = Learner(policy.model, TrainingSettings(learning_rate=1e-2, **settings))  # type: ignore[arg-type]
    samples = make_samples(policy)
    learner.step(samples, whole(samples), on_policy=False)
    return learner


def test_a_base_is_a_model_folder_with_its_hash(policy: TransformersPolicy, tmp_path: Path):
    """No parent, no step, no optimizer; loaded it is the policy."""
    save_base(policy, tmp_path)
    assert read_state(tmp_path) == CheckpointState(policy_hash=policy.hash, path_check=policy.path_check)
    assert load(tmp_path).hash == policy.hash
    assert not (tmp_path / OPTIMIZER).exists()


def test_a_checkpoint_records_its_parent_and_progress(policy: TransformersPolicy, tmp_path: Path):
    """Parent, steps, tokens of a pass, the base of adapters; no loss scale in fp32."""
    learner = _stepped(policy)
    learner.microbatch_tokens = 77
    save(policy, learner, tmp_path, parent="p0", base=BASE)
    assert read_state(tmp_path) == CheckpointState(
        path_check=policy.path_check,
        policy_hash=policy.hash,
        parent="p0",
        step_count=1,
        microbatch_tokens=77,
        loss_scale=None,
        base=BASE,
    )


def test_the_moments_of_every_weight_and_the_rng_state_are_saved(policy: TransformersPolicy, tmp_path: Path):
    """As the optimizer has them, by the names of the weights."""
    learner = _stepped(policy)
    torch.manual_seed(11)
    save(policy, learner, tmp_path, parent="p0")
    tensors = load_file(tmp_path / OPTIMIZER)
    assert torch.equal(tensors.pop("rng"), torch.get_rng_state())
    names = [name for name, _ in policy.model.named_parameters()]
    assert set(tensors) == {f"{name}.{key}" for name in names for key in ("step", "exp_avg", "exp_avg_sq")}
    for name, parameter in policy.model.named_parameters():
        for key, value in learner.optimizer.state[parameter].items():
            assert torch.equal(tensors[f"{name}.{key}"], value)


def test_a_learner_continues_from_a_checkpoint(policy: TransformersPolicy, tmp_path: Path):
    """Moments, steps and random numbers, and the smaller of both numbers of tokens."""
    learner = _stepped(policy)
    learner.microbatch_tokens = 77
    torch.manual_seed(11)
    save(policy, learner, tmp_path, parent="p0")
    drawn = torch.rand(3)
    for own, expected in ((4096, 77), (50, 50)):
        torch.manual_seed(12)
        fresh = Learner(load(tmp_path).model, TrainingSettings())
        fresh.microbatch_tokens = own
        resume(fresh, tmp_path)
        assert (fresh.step_count, fresh.microbatch_tokens) == (1, expected)
        assert torch.equal(torch.rand(3), drawn)
        for mine, theirs in zip(fresh.parameters, learner.parameters, strict=True):
            for key in ("step", "exp_avg", "exp_avg_sq"):
                assert torch.equal(fresh.optimizer.state[mine][key], learner.optimizer.state[theirs][key])


@pytest.mark.usefixtures("alone")
def test_moments_in_shards_are_resumed_by_sharded_and_by_whole_learners(policy: TransformersPolicy, tmp_path: Path):
    """A learner with sharded weights leaves shards, which it and a learner with whole weights go on from.

    The one file of a learner with whole weights is read by both too. Moments and random numbers are equal in all cases.
    """
    save_base(policy, tmp_path / "base")
    whole = _stepped(load(tmp_path / "base"))
    save(policy, whole, tmp_path / "file", parent="p0")
    sharded = load(tmp_path / "base")
    shard_model(sharded.model, local_logprobs)
    torch.manual_seed(11)
    save(sharded, _stepped(sharded), tmp_path / "shards", parent="p0", source=tmp_path / "base")
    drawn = torch.rand(3)
    assert not (tmp_path / "shards" / OPTIMIZER).exists()
    assert [path.name for path in (tmp_path / "shards" / OPTIMIZER_SHARDS).iterdir()] == [
        "shard-00001-model-00001-of-00001.safetensors"
    ]
    for folder in ("file", "shards"):
        for is_sharded in (True, False):
            model = load(tmp_path / "base").model
            if is_sharded:
                shard_model(model, local_logprobs)
            fresh = Learner(model, TrainingSettings())
            resume(fresh, tmp_path / folder)
            assert folder == "file" or torch.equal(torch.rand(3), drawn)
            for parameter, expected in zip(fresh.parameters, whole.parameters, strict=True):
                for key, value in whole.optimizer.state[expected].items():
                    moment = fresh.optimizer.state[parameter][key]
                    assert moment.device == parameter.device
                    torch.testing.assert_close(gather_full(moment), value, rtol=0, atol=1e-9)


@pytest.mark.usefixtures("alone")
def test_damaged_shards_are_refused(policy: TransformersPolicy, tmp_path: Path):
    """A file that was cut off, and moments of other weights: both name the folder."""
    save_base(policy, tmp_path / "base")
    sharded = load(tmp_path / "base")
    shard_model(sharded.model, local_logprobs)
    save(sharded, _stepped(sharded), tmp_path / "shards", parent="p0", source=tmp_path / "base")
    (file,) = (tmp_path / "shards" / OPTIMIZER_SHARDS).iterdir()
    tensors = load_file(file)
    tensors.pop("model.norm.weight.step")
    save_file(tensors, file)
    with pytest.raises(PolicyError, match=r"does not fit weight model.norm.weight \(32,\). Run the stage"):
        resume(Learner(load(tmp_path / "base").model, TrainingSettings()), tmp_path / "shards")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(PolicyError, match=rf"^{tmp_path / 'shards' / OPTIMIZER_SHARDS} cannot be read: "):
        resume(Learner(load(tmp_path / "base").model, TrainingSettings()), tmp_path / "shards")


def test_a_base_has_no_optimizer_state(policy: TransformersPolicy, tmp_path: Path):
    """Step 0, no moments; microbatch tokens and RNG state are unchanged."""
    save_base(policy, tmp_path)
    learner = Learner(policy.model, TrainingSettings(microbatch_tokens=99))
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    resume(learner, tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert (learner.step_count, learner.microbatch_tokens, dict(learner.optimizer.state)) == (0, 99, {})


def test_the_loss_scale_of_fp16_is_restored(policy: TransformersPolicy, tmp_path: Path):
    """Scale and its good steps; a learner in fp32 has none."""
    learner = Learner(policy.model, TrainingSettings(precision="fp16", importance_sampling_cap=2.0))
    learner.scaler.scale(torch.ones(()))  # a scaler makes its state when it is first asked
    learner.scaler.load_state_dict({**learner.scaler.state_dict(), "scale": 256.0, "_growth_tracker": 5})
    save(policy, learner, tmp_path, parent="p0")
    assert read_state(tmp_path).loss_scale == (256.0, 5)
    fresh = Learner(load(tmp_path).model, TrainingSettings(precision="fp16", importance_sampling_cap=2.0))
    resume(fresh, tmp_path)
    state = fresh.scaler.state_dict()
    assert (state["scale"], state["_growth_tracker"]) == (256.0, 5)
    resume(Learner(load(tmp_path).model, TrainingSettings()), tmp_path)


def test_only_rank_0_writes(policy: TransformersPolicy, tmp_path: Path):
    """Rank 1 leaves no file."""
    learner = Learner(policy.model, TrainingSettings(), process_group=ProcessGroup(rank=1, size=2))
    save(policy, learner, tmp_path / "second", parent="p0")
    assert not (tmp_path / "second").exists()


def test_a_folder_without_a_state_is_refused(tmp_path: Path):
    """The file that is missing is named."""
    with pytest.raises(PolicyError) as refusal:
        read_state(tmp_path)
    assert (
        str(refusal.value)
        == f"{tmp_path} is not a checkpoint: {STATE} is missing. Give the folder that a train stage wrote"
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop("model.norm.weight.exp_avg"), r"does not fit weight model.norm.weight \(32,\)"),
        (lambda tensors: tensors.pop("model.norm.weight.step"), r"does not fit weight model.norm.weight \(32,\)"),
        (
            lambda tensors: tensors.update({"model.norm.weight.exp_avg": torch.zeros(31)}),
            r"does not fit weight model.norm.weight \(32,\)",
        ),
        (
            lambda tensors: tensors.update({"model.other.weight.exp_avg": torch.zeros(32)}),
            r"belongs to another model, which has model.other.weight.exp_avg",
        ),
    ],
)
def test_moments_of_other_weights_are_refused(policy: TransformersPolicy, tmp_path: Path, change: object, reason: str):
    """Missing or of another shape: the weight is named with its shape."""
    save(policy, _stepped(policy), tmp_path, parent="p0")
    tensors = load_file(tmp_path / OPTIMIZER)
    change(tensors)  # type: ignore[operator]
    save_file(tensors, tmp_path / OPTIMIZER)
    with pytest.raises(
        PolicyError, match=f"^optimizer state in {tmp_path} {reason}. Run the stage that wrote it again$"
    ):
        resume(Learner(load(tmp_path).model, TrainingSettings()), tmp_path)


def test_a_weight_without_a_gradient_has_no_moments(policy: TransformersPolicy, tmp_path: Path):
    """A weight outside of the loss, such as a router's bias, is resumed without moments; the others have theirs."""
    learner = Learner(policy.model, TrainingSettings(learning_rate=1e-2))
    policy.model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
    resumed = Learner(policy.model, TrainingSettings())
    samples = make_samples(policy)
    learner.step(samples, whole(samples), on_policy=False)
    save(policy, learner, tmp_path, parent="p0")
    resume(resumed, tmp_path)
    assert policy.model.unused not in resumed.optimizer.state
    assert len(resumed.optimizer.state) == len(resumed.parameters) - 1


def test_a_truncated_optimizer_file_is_refused(policy: TransformersPolicy, tmp_path: Path):
    """The file is named."""
    save(policy, _stepped(policy), tmp_path, parent="p0")
    (tmp_path / OPTIMIZER).write_bytes((tmp_path / OPTIMIZER).read_bytes()[:100])
    with pytest.raises(PolicyError, match=rf"^{tmp_path / OPTIMIZER} cannot be read: "):
        resume(Learner(policy.model, TrainingSettings()), tmp_path)


def test_trust_region_checkpoints_have_only_rng_state(policy: TransformersPolicy, tmp_path: Path):
    """No moments; RNG state and step count are restored."""
    learner = Learner(policy.model, TrainingSettings())
    learner.step_count = 3
    torch.manual_seed(11)
    save(policy, learner, tmp_path, parent="p0")
    drawn = torch.rand(3)
    fresh = Learner(load(tmp_path).model, TrainingSettings())
    resume(fresh, tmp_path)
    assert torch.equal(torch.rand(3), drawn)
    assert (fresh.step_count, dict(fresh.optimizer.state)) == (3, {})


@pytest.fixture
def stored(policy: TransformersPolicy, tmp_path: Path) -> tuple[ArtifactStore, Artifact]:
    """A store with the base checkpoint in it."""
    store = ArtifactStore(str(tmp_path / "store"))
    return store, put_folder(store, "checkpoint", lambda folder: save_base(policy, folder))


def test_a_stored_checkpoint_is_sampled_by_the_cached_model(
    stored: tuple[ArtifactStore, Artifact], policy: TransformersPolicy
):
    """Loaded once: the next rollout has the same object."""
    store, checkpoint = stored
    played = make_inference_backend(store, checkpoint, RolloutSettings())
    assert isinstance(played, TransformersPolicy)
    assert played.hash == policy.hash
    assert load_policy(store, checkpoint) is played
    assert model_cache.take(policy.hash, store.path(checkpoint)) is played


def test_adapters_are_loaded_on_the_base_that_their_checkpoint_names(
    stored: tuple[ArtifactStore, Artifact], policy: TransformersPolicy
):
    """From the same store; vLLM, which needs whole weights, refuses them or is not installed."""
    from grpo.config.training import LoraSettings
    from grpo.policy.transformers.adapters import add_adapters, has_adapters
    from grpo.policy.transformers.model import weights_hash

    store, base = stored
    add_adapters(policy.model, LoraSettings(r=2), seed=0)
    policy.hash = weights_hash(policy.model)
    learner = Learner(policy.model, TrainingSettings(lora=LoraSettings(r=2)))
    checkpoint = put_folder(store, "checkpoint", lambda folder: save(policy, learner, folder, parent="p0", base=base))
    played = make_inference_backend(store, checkpoint, RolloutSettings())
    assert isinstance(played, TransformersPolicy)
    assert has_adapters(played.model)
    assert played.hash == policy.hash
