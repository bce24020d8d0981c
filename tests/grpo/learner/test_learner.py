from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from grpo.algorithms.catalog import ALGORITHMS
from grpo.algorithms.reductions import Denominators
from grpo.config.training import AlgorithmName, TrainingSettings
from grpo.errors import CapacityError, PolicyError, RatioError
from grpo.learner.batch import Sample
from grpo.learner.checkpoints import resume, save
from grpo.learner.distributed import ProcessGroup
from grpo.learner.learner import Learner
from grpo.learner.logprobs import compute_logprobs, reference_kl
from grpo.policy.transformers.forward.passes import hidden_states, microbatches
from grpo.policy.transformers.forward.token_batch import TokenBatch
from grpo.policy.transformers.model import TransformersPolicy, load


def make_samples(policy: TransformersPolicy, *, advantages: tuple[float, ...] = (1.0, -1.0, 0.5)) -> list[Sample]:
    """Random sequences of different lengths, with the log-probabilities that the model itself gives them.

    They begin alike, the first and the third with the same prompt: what is shared is computed once.
    """
    rng = np.random.default_rng(0)
    prompts = rng.integers(8, 200, (2, 4)).astype(np.int32)
    prompts[1, 0] = prompts[0, 0]
    samples = []
    for index, advantage in enumerate(advantages):
        length = 6 + 3 * index
        mask = rng.random(length) < 0.5
        mask[:4], mask[4], mask[-1] = False, True, True
        blank = Sample(
            token_ids=np.concatenate([prompts[index % 2], rng.integers(8, 200, length - 4).astype(np.int32)]),
            loss_mask=mask,
            sampler_logprobs=np.zeros(length, dtype=np.float32),
            advantages=np.float32(advantage) * mask,
            temperature=0.8,
            place=f"row {index}",
        )
        with torch.no_grad():
            logprobs = np.zeros(length, dtype=np.float32)
            logprobs[mask] = compute_logprobs(policy.model, [blank]).logprobs.numpy()
        samples.append(replace(blank, sampler_logprobs=logprobs))
    return samples


def whole(samples: list[Sample]) -> Denominators:
    """The sizes of a batch that is nothing but these samples."""
    tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    return Denominators(sequences=len(samples), tokens=tokens, normalizer=16)


def _gradient(
    policy: TransformersPolicy, samples: list[Sample], *, budget: int = 4096, **settings: object
) -> torch.Tensor:
    """Gradient of one step in passes of at most `budget` tokens, unclipped; the weights stay (learning rate 0)."""
    plan = TrainingSettings(learning_rate=0, max_grad_norm=1e9, **settings)  # type: ignore[arg-type]
    reference = load_copy(policy).model if plan.beta else None
    if reference is not None:
        with torch.no_grad():
            next(reference.parameters()).mul_(1.3)  # a reference that is somewhere else
    learner = Learner(policy.model, plan, reference=reference)
    learner.microbatch_tokens = budget
    learner.step(samples, whole(samples), on_policy=False)
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def test_the_gradient_is_reinforce_on_completion_tokens(policy: TransformersPolicy):
    """On-policy: −mean over sequences of A · mean over completion tokens of log π, by plain autograd."""
    samples = make_samples(policy)
    expected = torch.zeros(())
    for sample in samples:
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        logprobs = torch.log_softmax(policy.model(input_ids=ids).logits[0].float() / 0.8, dim=-1)
        own = [float(sample.advantages[t]) * logprobs[t - 1, ids[0, t]] for t in np.flatnonzero(sample.loss_mask)]
        expected = expected - torch.stack(own).mean() / len(samples)
    policy.model.zero_grad()
    expected.backward()
    exact = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    assert torch.allclose(_gradient(policy, samples), exact, atol=1e-6)


def test_the_gradient_does_not_depend_on_the_microbatches(policy: TransformersPolicy):
    """One forward pass or one a sequence, in any order: the same gradient."""
    samples = make_samples(policy)
    assert len(microbatches(policy.model, samples, max_tokens=12)) == len(samples)
    assert torch.allclose(_gradient(policy, samples), _gradient(policy, samples[::-1], budget=12), atol=1e-7)


def test_a_token_outside_the_loss_mask_has_no_gradient(policy: TransformersPolicy):
    """Another last token outside the mask gives the same gradient."""
    sample = make_samples(policy)[0]
    mask = sample.loss_mask.copy()
    mask[-1] = False
    muted = replace(sample, loss_mask=mask)
    other = replace(muted, token_ids=np.append(sample.token_ids[:-1], 201).astype(np.int32))
    assert torch.equal(_gradient(policy, [muted]), _gradient(policy, [other]))


def test_a_ratio_that_is_not_one_stops_the_run_and_names_the_row(policy: TransformersPolicy):
    """Log-probabilities of another temperature are an error before the first step."""
    samples = make_samples(policy)
    samples[1] = replace(samples[1], sampler_logprobs=samples[1].sampler_logprobs - 0.01)
    before = copy.deepcopy(policy.model.state_dict())
    learner = Learner(policy.model, TrainingSettings())
    with pytest.raises(RatioError, match=r"1 of 3 rows.*first row 1"):
        learner.step(samples, whole(samples), on_policy=True)
    assert all(torch.equal(before[name], value) for name, value in policy.model.state_dict().items())


def test_nan_log_probabilities_do_not_pass_the_ratio_check(policy: TransformersPolicy):
    """NaN compares false with every number, and is an error."""
    samples = make_samples(policy)
    samples[0] = replace(samples[0], sampler_logprobs=samples[0].sampler_logprobs * np.nan)
    with pytest.raises(RatioError):
        Learner(policy.model, TrainingSettings()).step(samples, whole(samples), on_policy=True)


def test_tokens_with_a_positive_advantage_become_likelier(policy: TransformersPolicy):
    """A few steps with advantage +1 on one sequence raise its log-probability."""
    (sample,) = make_samples(policy, advantages=(1.0,))
    learner = Learner(policy.model, TrainingSettings(learning_rate=1e-2))
    before = float(compute_logprobs(policy.model, [sample]).logprobs.detach().sum())
    for _ in range(3):
        learner.step([sample], whole([sample]), on_policy=False)
    assert float(compute_logprobs(policy.model, [sample]).logprobs.detach().sum()) > before + 0.1


def test_the_kl_penalty_keeps_the_policy_near_the_base(policy: TransformersPolicy):
    """With beta the KL after the same steps is smaller."""
    samples = make_samples(policy)

    def distance(beta: float) -> float:
        model = copy.deepcopy(policy.model)
        learner = Learner(model, TrainingSettings(learning_rate=1e-2, beta=beta), reference=policy.model)
        for _ in range(8):
            learner.step(samples, whole(samples), on_policy=False)
        with torch.no_grad():
            moved = [compute_logprobs(model, [s]).logprobs.numpy() for s in samples]
        shifted = []
        for sample, logprobs in zip(samples, moved, strict=True):
            filled = sample.sampler_logprobs.copy()
            filled[sample.loss_mask] = logprobs
            shifted.append(replace(sample, sampler_logprobs=filled))
        return reference_kl(policy.model, shifted, max_tokens=4096)

    assert distance(5.0) < 0.7 * distance(0.0)


def test_the_entropy_bonus_flattens_the_policy(policy: TransformersPolicy):
    """With the bonus alone, entropy rises."""
    samples = [replace(s, advantages=np.zeros_like(s.advantages)) for s in make_samples(policy)]
    learner = Learner(policy.model, TrainingSettings(learning_rate=1e-2, entropy_coefficient=1.0))
    metrics = learner.step(samples, whole(samples), on_policy=False)
    assert {"ratio", "clip_share", "masked_share", "loss", "tokens"} <= metrics.keys()
    first = metrics["entropy"]
    for _ in range(3):
        last = learner.step(samples, whole(samples), on_policy=False)["entropy"]
    assert last > first


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 0.853553, 0.5, 0.146447]),  # (1 + cos(π/4))/2, (1 + cos(π/2))/2, (1 + cos(3π/4))/2
    ],
)
def test_the_learning_rate_follows_its_schedule(policy: TransformersPolicy, schedule: str, rates: list[float]):
    """Warm-up over 2 steps; one step at each quarter of the run."""
    settings = TrainingSettings(learning_rate=1.0, warmup_steps=2, lr_scheduler_type=schedule)  # type: ignore[arg-type]
    learner = Learner(policy.model, settings)
    seen = []
    for step in range(4):
        learner.step_count = step
        seen.append(learner.learning_rate(step / 4))
    assert seen == pytest.approx(rates, abs=1e-6)


def test_a_resumed_learner_reaches_the_same_bits(policy: TransformersPolicy, tmp_path: Path):
    """Two steps, or one step, a checkpoint and another step: the same weights."""
    samples = make_samples(policy)
    settings = TrainingSettings(learning_rate=1e-2)
    other = load_copy(policy)
    straight = Learner(policy.model, settings)
    for _ in range(2):
        straight.step(samples, whole(samples), on_policy=False)
    first = Learner(other.model, settings)
    first.step(samples, whole(samples), on_policy=False)
    save(other, first, tmp_path / "one", parent="base")
    reloaded = load(tmp_path / "one")
    second = Learner(reloaded.model, settings)
    resume(second, tmp_path / "one")
    second.step(samples, whole(samples), on_policy=False)
    assert second.step_count == 2
    for name, value in policy.model.state_dict().items():
        assert torch.equal(value, reloaded.model.state_dict()[name]), name


def load_copy(policy: TransformersPolicy) -> TransformersPolicy:
    return TransformersPolicy(copy.deepcopy(policy.model), policy.tokenizer)


def test_optimizer_state_of_another_architecture_is_refused(policy: TransformersPolicy, tmp_path: Path):
    """A checkpoint fits its own model alone."""
    learner = Learner(policy.model, TrainingSettings())
    learner.step(make_samples(policy), whole(make_samples(policy)), on_policy=False)
    save(policy, learner, tmp_path / "one", parent="base")
    from grpo.pretrain.init_model import init_model

    wider = init_model(policy.tokenizer, hidden_size=48, layers=2, heads=4, kv_heads=2, mlp_size=64, seed=0)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="does not fit weight"):
        resume(Learner(wider, TrainingSettings()), tmp_path / "one")


ALGORITHM_NAMES = [name for name, algorithm in ALGORITHMS.items() if algorithm.update == "gradient"]


def test_every_algorithm_of_the_config_is_in_the_table():
    """And each of the table in the config."""
    assert tuple(ALGORITHMS) == get_args(AlgorithmName)


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_no_algorithm_depends_on_microbatches_or_order(policy: TransformersPolicy, algorithm: str):
    """One pass or one a sequence, in any order, off-policy and with every option on: the same gradient and loss."""
    samples = [
        replace(s, sampler_logprobs=s.sampler_logprobs - 0.3 * s.loss_mask * (-1) ** k)
        for k, s in enumerate(make_samples(policy))
    ]
    options = {"algorithm": algorithm, "entropy_coefficient": 0.1, "top_entropy_quantile": 0.5}
    whole_batch = _gradient(policy, samples, **options)
    assert whole_batch.abs().max() > 0
    assert torch.allclose(whole_batch, _gradient(policy, samples[::-1], budget=12, **options), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_every_algorithm_follows_the_sign_of_the_advantage(policy: TransformersPolicy, algorithm: str):
    """Five steps on a sequence with a positive and one with a negative advantage."""
    good, bad = make_samples(policy, advantages=(1.0, -1.0))
    model = copy.deepcopy(policy.model)
    learner = Learner(model, TrainingSettings(algorithm=algorithm, learning_rate=3e-3))  # type: ignore[arg-type]
    for _ in range(5):
        learner.step([good, bad], whole([good, bad]), on_policy=False)
    with torch.no_grad():
        gains = [float((compute_logprobs(model, [s]).logprobs - compute_logprobs(policy.model, [s]).logprobs).sum())
                 for s in (good, bad)]  # fmt: skip
    assert gains[0] > 0 > gains[1]


@pytest.mark.parametrize(
    "knob",
    [
        {"algorithm": "dr_grpo"}, {"algorithm": "dapo"}, {"algorithm": "gspo"}, {"algorithm": "cispo"},
        {"algorithm": "rloo"}, {"clip_low": 0.05}, {"clip_high": 0.05}, {"dual_clip": 1.1},
        {"top_entropy_quantile": 0.3}, {"entropy_coefficient": 0.1}, {"beta": 0.1}, {"importance_sampling_cap": 1.1},
    ],
    ids=str,
)  # fmt: skip
def test_every_setting_of_the_loss_changes_the_gradient(policy: TransformersPolicy, knob: dict[str, object]):
    """A setting without an effect is not offered."""
    samples = []
    for sample, log_ratio in zip(
        make_samples(policy, advantages=(1.0, -1.0, 0.5, -0.5)), (0.15, -0.1, 0.15, 0.3), strict=True
    ):
        old = sample.sampler_logprobs - np.float32(log_ratio) * sample.loss_mask
        samples.append(
            replace(sample, proximal_logprobs=old, sampler_logprobs=old - np.float32(0.2) * sample.loss_mask)
        )
    plain = _gradient(policy, samples)
    assert not torch.allclose(plain, _gradient(policy, samples, **knob), atol=1e-6)  # type: ignore[arg-type]


def test_the_normalizer_of_dr_grpo_divides_the_gradient(policy: TransformersPolicy):
    """Twice the constant, half the gradient."""
    samples = make_samples(policy)

    def gradient(normalizer: int) -> torch.Tensor:
        learner = Learner(policy.model, TrainingSettings(algorithm="dr_grpo", learning_rate=0, max_grad_norm=1e9))
        learner.step(samples, replace(whole(samples), normalizer=normalizer), on_policy=False)
        return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])

    assert torch.allclose(gradient(16), 2 * gradient(32), atol=1e-7)


def test_out_of_memory_repeats_the_step_in_smaller_passes(policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch):
    """The allocator refuses passes of more than 20 tokens: the gradient is that of a machine that has room."""
    samples = make_samples(policy)
    expected = _gradient(policy, samples)
    real = hidden_states

    def cramped(model: PreTrainedModel, packed: TokenBatch) -> torch.Tensor:
        if packed.token_ids.shape[1] > 20:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
        return real(model, packed)

    monkeypatch.setattr("grpo.learner.logprobs.hidden_states", cramped)
    assert torch.allclose(expected, _gradient(policy, samples), atol=1e-7)


def test_the_reduced_microbatch_size_is_kept_in_the_checkpoint(policy: TransformersPolicy, tmp_path: Path):
    """The next update starts with it."""
    learner = Learner(policy.model, TrainingSettings())
    learner.step(make_samples(policy), whole(make_samples(policy)), on_policy=False)
    learner.microbatch_tokens = 100
    save(policy, learner, tmp_path / "one", parent="base")
    other = Learner(policy.model, TrainingSettings())
    resume(other, tmp_path / "one")
    assert other.microbatch_tokens == 100


def test_a_sequence_that_does_not_fit_into_memory_is_an_error(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
):
    """No pass fits: the error gives the length and the setting."""

    def full(model: PreTrainedModel, packed: TokenBatch) -> torch.Tensor:
        raise torch.OutOfMemoryError("out of memory")

    samples = make_samples(policy)
    monkeypatch.setattr("grpo.learner.logprobs.hidden_states", full)
    with pytest.raises(CapacityError, match=r"one sequence of 12 tokens.*max_context"):
        _gradient(policy, samples)


def test_a_clip_that_an_algorithm_does_not_read_is_refused():
    """A setting without an effect is an error."""
    with pytest.raises(ValueError, match="dual_clip has no effect with algorithm rloo"):
        TrainingSettings(algorithm="rloo", dual_clip=3.0)


def test_equal_sequences_are_not_split_over_processes(policy: TransformersPolicy):
    """Three equal ones and another are two microbatches for four processes."""
    first, other, _ = make_samples(policy)
    parts = [
        Learner(policy.model, TrainingSettings(), process_group=ProcessGroup(rank=rank, size=4)).microbatches(
            [first, other, first, first]
        )
        for rank in range(4)
    ]
    assert sorted([len(micro) for micro in part] for part in parts) == [[], [], [1], [3]]


def test_a_batch_is_split_until_each_process_has_a_microbatch(policy: TransformersPolicy):
    """Three sequences are one pass for one process; two processes, and four, share them out and lose none."""
    samples = make_samples(policy)
    assert len(Learner(policy.model, TrainingSettings()).microbatches(samples)) == 1
    for size, most in ((2, 2), (4, 3)):
        parts = [
            Learner(policy.model, TrainingSettings(), process_group=ProcessGroup(rank=rank, size=size)).microbatches(
                samples
            )
            for rank in range(size)
        ]
        assert sum(map(bool, parts)) == most
        places = sorted(sample.place for part in parts for micro in part for sample in micro)
        assert places == ["row 0", "row 1", "row 2"]
