"""Log-probabilities of loss tokens against plain forward passes and values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo.config.training import TrainingSettings
from grpo.errors import RatioError
from grpo.learner.batch import Sample
from grpo.learner.logprobs import (
    check_mismatch,
    check_ratio,
    compute_logprobs,
    log_distributions,
    loss_tokens,
    mismatch_kl,
    reference_kl,
    with_proximal_logprobs,
)
from grpo.policy.transformers.model import TransformersPolicy
from tests.grpo.learner.test_learner import make_samples


def _plain(policy: TransformersPolicy, sample: Sample) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary before each loss token, [loss tokens, vocabulary]."""
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0].float()
    return torch.log_softmax(logits[np.flatnonzero(sample.loss_mask) - 1] / sample.temperature, dim=-1)


def test_logprobs_are_those_of_each_sample_at_its_own_temperature(policy: TransformersPolicy):
    """Log-probability and entropy of each loss token, in order of samples and positions."""
    samples = [replace(s, temperature=t) for s, t in zip(make_samples(policy), (0.5, 1.0, 2.0), strict=True)]
    scores = compute_logprobs(policy.model, samples)
    rows = [_plain(policy, sample) for sample in samples]
    targets = np.concatenate([sample.token_ids[sample.loss_mask] for sample in samples]).astype(np.int64)
    every = torch.cat(rows)
    assert torch.allclose(scores.logprobs, every.gather(1, torch.from_numpy(targets)[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(scores.entropy, -(every.exp() * every).sum(dim=1), atol=1e-5)
    for sample, row in zip(samples, rows, strict=True):
        distributions, counts = log_distributions(policy.model, [sample, sample])
        assert torch.allclose(distributions, row, atol=1e-5)
        assert counts.tolist() == [2] * len(row)


def test_shared_prompts_go_through_the_model_once(policy: TransformersPolicy):
    """6, 9 and 12 tokens; the first is shared by all, the first four by the first and the third: 27 - 2 - 3 = 22."""
    assert compute_logprobs(policy.model, make_samples(policy)).processed_tokens == 22


def test_equal_beginnings_are_scored_once_with_the_gradient_of_each(policy: TransformersPolicy):
    """Two equal samples and one that differs in its last token and one in its temperature, each with its own weight."""
    first, *_ = make_samples(policy)
    other = replace(first, token_ids=np.array([*first.token_ids[:-1], 7], np.int32))
    samples = [first, first, other, replace(first, temperature=2.0)]
    tokens = int(first.loss_mask.sum())
    weights = torch.arange(1.0, 1 + 4 * tokens)
    scored: list[int] = []
    head = policy.model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, given: scored.append(given[0].shape[-2]))

    def gradient(batches: list[list[Sample]]) -> tuple[torch.Tensor, torch.Tensor]:
        policy.model.zero_grad()
        logprobs = torch.cat([compute_logprobs(policy.model, batch).logprobs for batch in batches])
        (weights * logprobs).sum().backward()
        flat = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
        return logprobs.detach(), flat

    try:
        together = gradient([samples])
    finally:
        handle.remove()
    assert scored == [tokens + 1 + tokens]
    for value, expected in zip(together, gradient([[sample] for sample in samples]), strict=True):
        assert torch.allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_chunks_of_logits_change_neither_logprobs_nor_gradient(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
):
    """Two loss tokens at a time of 313 logits each."""
    samples = make_samples(policy)

    def gradient() -> tuple[torch.Tensor, torch.Tensor]:
        policy.model.zero_grad()
        scores = compute_logprobs(policy.model, samples)
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
        flat = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
        return scores.logprobs.detach(), flat

    whole = gradient()
    monkeypatch.setattr("grpo.learner.logprobs._MAX_LOGITS", 2 * 313 + 1)
    for at_once, chunked in zip(whole, gradient(), strict=True):
        assert torch.allclose(at_once, chunked, atol=1e-5)


def test_values_of_loss_tokens_are_in_order(policy: TransformersPolicy):
    """Of the sampler, of the policy before the update where it is another, advantages, and how many of each sample."""
    first, second, _ = make_samples(policy)
    second = replace(second, proximal_logprobs=second.sampler_logprobs - 1)
    known = loss_tokens([first, second], device=torch.device("cpu"))
    sampler = np.concatenate([sample.sampler_logprobs[sample.loss_mask] for sample in (first, second)])
    own = int(first.loss_mask.sum())
    assert known.sampler_logprobs.numpy().tolist() == sampler.tolist()
    assert known.proximal_logprobs.numpy().tolist() == [*sampler[:own], *(sampler[own:] - 1)]
    assert known.advantages.tolist() == [1.0] * own + [-1.0] * (len(sampler) - own)
    assert known.lengths.tolist() == [own, len(sampler) - own]


def test_proximal_logprobs_are_added_beside_those_of_the_sampler(policy: TransformersPolicy):
    """For each sample in its place, in any microbatch; 0 at prompt tokens."""
    samples = [replace(s, sampler_logprobs=s.sampler_logprobs - 0.5) for s in make_samples(policy)]
    for budget in (4096, 12):
        known = with_proximal_logprobs(policy.model, samples, precision="fp32", max_tokens=budget)
        for sample, noted in zip(samples, known, strict=True):
            assert noted.place == sample.place
            assert np.array_equal(noted.sampler_logprobs, sample.sampler_logprobs)
            assert noted.proximal_logprobs is not None
            expected = np.where(sample.loss_mask, sample.sampler_logprobs + 0.5, 0.0)
            assert np.allclose(noted.proximal_logprobs, expected, atol=1e-5)


def _sample(sampler: list[float], policy: list[float]) -> Sample:
    """A sequence of one prompt token and these log-probabilities."""
    zero = [0.0]
    return Sample(
        token_ids=np.arange(1 + len(sampler), dtype=np.int32),
        loss_mask=np.array([False] + [True] * len(sampler)),
        sampler_logprobs=np.array(zero + sampler, dtype=np.float32),
        proximal_logprobs=np.array(zero + policy, dtype=np.float32),
        advantages=np.zeros(1 + len(sampler), dtype=np.float32),
        temperature=1.0,
        place="row",
    )


def test_the_mismatch_is_a_mean_over_tokens():
    """Three tokens of two samples: log r is ln 1/2, 0 and ln 2 → k3 .5 - 1 + ln 2, 0 and 2 - 1 - ln 2: mean .5 / 3."""
    half, quarter = float(np.log(0.5)), float(np.log(0.25))
    samples = [_sample([half, half], [quarter, half]), _sample([quarter], [half])]
    assert mismatch_kl(samples) == pytest.approx(0.5 / 3, abs=1e-6)


@pytest.mark.parametrize("distance", [0.51, float("inf"), float("nan")])
def test_a_sampler_that_is_too_far_from_the_policy_is_refused(distance: float):
    """More than `max_mismatch_kl`. The bound itself is allowed."""
    settings = TrainingSettings(importance_sampling_cap=2.0, max_mismatch_kl=0.5)
    check_mismatch(0.5, settings)
    with pytest.raises(RatioError, match=r"more than training.max_mismatch_kl 0\.5"):
        check_mismatch(distance, settings)


def test_the_distance_to_a_reference_is_a_mean_over_tokens_of_all_passes(policy: TransformersPolicy):
    """Half the probability under the sampler: r = 2, k3 = 2 - 1 - ln 2 at each token; 0 without tokens."""
    samples = [
        replace(s, sampler_logprobs=np.where(s.loss_mask, s.sampler_logprobs - np.log(2), 0).astype(np.float32))
        for s in make_samples(policy)
    ]
    for budget in (4096, 12):
        assert reference_kl(policy.model, samples, max_tokens=budget) == pytest.approx(1 - np.log(2), abs=1e-4)
    assert reference_kl(policy.model, [], max_tokens=4096) == 0.0


def test_samples_beyond_the_tolerance_are_named_the_furthest_first():
    """Four of five; a distance at the tolerance is within it."""
    rows = [(0.2, "a"), (1e-4, "b"), (0.5, "c"), (0.3, "d"), (0.1, "e")]
    with pytest.raises(RatioError) as refusal:
        check_ratio(rows, tolerance=1e-4)
    assert str(refusal.value) == (
        "importance ratio before the first step is off by up to 5.00e-01 in 4 of 5 rows (tolerance 1e-04), "
        "first c, d, a, because the rollout was not sampled by these weights, or not at the stored temperature"
    )
    check_ratio(rows[1:2], tolerance=1e-4)
    check_ratio([], tolerance=0.0)


def test_by_default_a_reply_of_one_unlikely_token_is_within_the_tolerance():
    """Its ratio is off by 3e-5 in float32."""
    tolerance = TrainingSettings().ratio_tolerance
    check_ratio([(3e-5, "a reply of one token")], tolerance=tolerance)
    with pytest.raises(RatioError):
        check_ratio([(1e-3, "a row")], tolerance=tolerance)
