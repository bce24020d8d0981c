"""Distillation: the exact divergence and its gradient by hand, whatever the layout, and what the weight of it means."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from grpo.algorithms.kl import reverse_kl
from grpo.config.training import TrainingSettings
from grpo.errors import PolicyError
from grpo.learner import logprobs
from grpo.learner.batch import Sample
from grpo.learner.distillation import Teacher
from grpo.learner.learner import Learner
from grpo.learner.logprobs import compute_logprobs
from grpo.learner.teacher_prompts import TeacherSequence
from grpo.policy.tokenizer import check_same_tokenizer
from grpo.policy.transformers.model import TransformersPolicy, load
from tests.grpo.learner.conftest import perturbed
from tests.grpo.learner.test_learner import make_samples, whole


def taught(sample: Sample, *hint: int) -> Sample:
    """The sample with a teacher that reads the hint's tokens after its first token."""
    ids = np.array([sample.token_ids[0], *hint, *sample.token_ids[1:]], dtype=np.int32)
    mask = np.array([*sample.loss_mask[:1], *[False] * len(hint), *sample.loss_mask[1:]])
    return replace(sample, teacher=TeacherSequence(token_ids=ids, loss_mask=mask, temperature=sample.temperature))


def _step(
    model: PreTrainedModel, samples: list[Sample], teacher: Teacher | None, **settings: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """Gradient and metrics of one step, unclipped. The weights stay, because the learning rate is 0."""
    if teacher is not None:
        settings["distillation"] = {"privileged_context": ["outcome"], **settings.get("distillation", {})}
    plan = TrainingSettings(learning_rate=0, max_grad_norm=1e9, **settings)
    learner = Learner(model, plan, teacher=teacher)
    metrics = learner.step(samples, whole(samples), on_policy=False)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), metrics


def _plain(model: PreTrainedModel, sample: Sample | TeacherSequence) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary before each loss token by a plain pass, [loss tokens, vocabulary]."""
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
    logits = model(input_ids=ids).logits[0].float()
    return torch.log_softmax(logits[np.flatnonzero(sample.loss_mask) - 1] / sample.temperature, dim=-1)


def test_the_divergence_and_its_gradient_in_a_vocabulary_of_two():
    """π = (¾, ¼) against (½, ½): KL = ¾ ln 1.5 + ¼ ln ½ = .130812.

    The gradient of the first logit is ¾ (ln 1.5 − .130812) = .205990, and of the second ¼ (ln ½ − .130812) = −.205990.
    """
    logits = torch.tensor([[0.75, 0.25]]).log().requires_grad_()
    teacher = torch.tensor([[0.5, 0.5]]).log()
    divergence = reverse_kl(torch.log_softmax(logits, dim=-1), teacher)
    divergence.sum().backward()
    assert divergence.tolist() == pytest.approx([0.130812], abs=1e-6)
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([0.205990, -0.205990], abs=1e-6)


def test_the_step_on_a_model_with_a_vocabulary_of_two_is_the_gradient_by_hand():
    """The head's gradient is the mean over tokens of π(v) (log π(v)/π_T(v) − KL) · hidden state, without autograd."""
    config = LlamaConfig(
        vocab_size=2, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
    )
    torch.manual_seed(0)
    model, other = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    model.forward_path = other.forward_path = "padded"
    ids, mask = np.array([0, 1, 1, 0], dtype=np.int32), np.array([False, False, True, True])
    zeros = np.zeros(4, dtype=np.float32)
    sample = taught(
        Sample(token_ids=ids, loss_mask=mask, sampler_logprobs=zeros, advantages=zeros, temperature=1.0, place="row")
    )
    _, metrics = _step(model, [sample], Teacher(model=other))
    with torch.no_grad():
        tokens = torch.from_numpy(ids.astype(np.int64))[None]
        states = model.model(input_ids=tokens).last_hidden_state[0, 1:3]
        own, theirs = (_plain(each, sample) for each in (model, other))
        ratio = own - theirs
        divergence = (own.exp() * ratio).sum(dim=1, keepdim=True)
        by_hand = (own.exp() * (ratio - divergence)).T @ states / 2
    gradient = model.lm_head.weight.grad
    assert gradient is not None
    assert torch.allclose(gradient, by_hand, atol=1e-6)
    assert by_hand.abs().max() > 1e-4
    assert metrics["teacher_kl"] == pytest.approx(float(divergence.mean()), rel=1e-5)
    assert all(parameter.grad is None for parameter in other.parameters())


def test_the_gradient_is_that_of_a_plain_pass_over_what_the_teacher_reads(policy: TransformersPolicy):
    """Mean over sequences of means over tokens of KL(policy ‖ teacher). The teacher reads two tokens more."""
    samples, other = [taught(sample, 9, 11) for sample in make_samples(policy)], perturbed(policy.model)
    expected = torch.zeros(())
    for sample in samples:
        assert sample.teacher is not None
        own, theirs = _plain(policy.model, sample), _plain(other, sample.teacher).detach()
        expected = expected + (own.exp() * (own - theirs)).sum(dim=1).mean() / len(samples)
    policy.model.zero_grad()
    expected.backward()
    exact = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    gradient, metrics = _step(policy.model, samples, Teacher(model=other))
    assert torch.allclose(gradient, exact, atol=1e-6)
    assert exact.abs().max() > 1e-4
    assert metrics["taught_share"] == 1


def test_the_gradient_does_not_depend_on_microbatches_and_chunks_of_logits(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
):
    """One pass and one chunk, or a pass for each sample and a chunk for each token."""
    samples, teacher = [taught(sample, 9) for sample in make_samples(policy)], Teacher(model=perturbed(policy.model))
    at_once, _ = _step(policy.model, samples, teacher)
    monkeypatch.setattr(logprobs, "_MAX_LOGITS", 1)
    by_parts, _ = _step(policy.model, samples[::-1], teacher, microbatch_tokens=64)
    assert torch.allclose(at_once, by_parts, atol=1e-7)


def test_equal_prefixes_with_different_hints_have_their_own_teachers(policy: TransformersPolicy):
    """The policy reads both samples once, and the teacher reads two sequences."""
    first, *_ = make_samples(policy)
    teacher = Teacher(model=perturbed(policy.model))
    both = [taught(first, 9), taught(first, 11)]
    together = compute_logprobs(policy.model, both, teacher=teacher.read(both)).teacher_kl
    alone = [compute_logprobs(policy.model, [each], teacher=teacher.read([each])).teacher_kl for each in both]
    assert together is not None
    assert torch.allclose(together, torch.cat(alone), atol=1e-6)
    assert not torch.allclose(*torch.chunk(together, 2), atol=1e-4)


def test_the_weight_is_shared_between_policy_gradient_and_distillation(policy: TransformersPolicy):
    """¼ of the distillation and ¾ of the policy gradient. With weight 1 the advantages have no part."""
    samples, teacher = [taught(sample) for sample in make_samples(policy)], Teacher(model=perturbed(policy.model))
    rewarded, _ = _step(policy.model, samples, None)
    distilled, _ = _step(policy.model, samples, teacher)
    mixed, _ = _step(policy.model, samples, teacher, distillation={"distillation_weight": 0.25})
    assert torch.allclose(mixed, 0.75 * rewarded + 0.25 * distilled, atol=1e-6)
    flat = [replace(sample, advantages=np.zeros_like(sample.advantages)) for sample in samples]
    assert torch.allclose(_step(policy.model, flat, teacher)[0], distilled, atol=1e-7)


def test_a_sample_without_a_teacher_has_no_distillation(policy: TransformersPolicy):
    """Its tokens count in the denominators, and the divergence is the mean over the others."""
    first, second, third = make_samples(policy)
    teacher = Teacher(model=perturbed(policy.model))
    gradient, metrics = _step(policy.model, [taught(first), second, third], teacher)
    alone, only = _step(policy.model, [taught(first)], teacher)
    assert torch.allclose(gradient, alone / 3, atol=1e-7)
    tokens = [int(sample.loss_mask.sum()) for sample in (first, second, third)]
    assert metrics["taught_share"] == pytest.approx(tokens[0] / sum(tokens))
    assert metrics["teacher_kl"] == pytest.approx(only["teacher_kl"], rel=1e-4)


def test_a_policy_is_its_own_teacher_without_a_gradient_of_the_teacher(policy: TransformersPolicy):
    """Without a hint the divergence from itself is 0, and so is the gradient. With one neither is."""
    live, samples = Teacher(model=policy.model, with_adapters=True), make_samples(policy)
    same, metrics = _step(policy.model, [taught(sample) for sample in samples], live)
    assert metrics["teacher_kl"] == pytest.approx(0, abs=1e-6)
    assert same.abs().max() < 1e-6
    hinted, metrics = _step(policy.model, [taught(sample, 9, 11) for sample in samples], live)
    frozen, _ = _step(policy.model, [taught(s, 9, 11) for s in samples], Teacher(model=copy.deepcopy(policy.model)))
    assert metrics["teacher_kl"] > 1e-4
    assert torch.allclose(hinted, frozen, atol=1e-7)


def test_tokens_of_low_entropy_and_masked_sequences_are_not_distilled(policy: TransformersPolicy):
    """The loss is on half of the tokens only, of the distillation too."""
    samples, teacher = [taught(sample) for sample in make_samples(policy)], Teacher(model=perturbed(policy.model))
    every, _ = _step(policy.model, samples, teacher)
    half, _ = _step(policy.model, samples, teacher, top_entropy_quantile=0.5)
    assert not torch.allclose(every, half, atol=1e-4)
    far = [
        replace(sample, proximal_logprobs=sample.sampler_logprobs, sampler_logprobs=sample.sampler_logprobs - 1)
        for sample in samples
    ]
    none, _ = _step(policy.model, far, teacher, importance_sampling_cap=2.0, importance_sampling_mask=1.1)
    assert none.abs().max() == 0


def test_a_vocabulary_that_is_padded_further_is_compared_on_the_ids_of_both(policy: TransformersPolicy):
    """Eight more rows of the teacher's embedding, which no token has, leave the divergence from itself at 0."""
    padded = copy.deepcopy(policy.model)
    padded.resize_token_embeddings(padded.config.vocab_size + 8)
    samples = [taught(sample) for sample in make_samples(policy)]
    distances = compute_logprobs(policy.model, samples, teacher=Teacher(model=padded).read(samples)).teacher_kl
    assert distances is not None
    assert distances.abs().max() < 1e-5


def test_a_teacher_with_another_tokenizer_is_refused(policy: TransformersPolicy, tiny_folder: Path):
    """The message names the first token that differs."""
    check_same_tokenizer(policy.tokenizer, load(tiny_folder).tokenizer, address="models/same")
    other = load(tiny_folder).tokenizer
    other.add_tokens(["<plan>"])
    with pytest.raises(PolicyError, match=r"models/other has another tokenizer .* 1 tokens differ, .* '<plan>', which"):
        check_same_tokenizer(policy.tokenizer, other, address="models/other")
