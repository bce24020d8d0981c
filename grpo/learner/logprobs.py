"""Log-probabilities and entropy of completion tokens, and KL divergences estimated from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from grpo.algorithms.kl import k3, reverse_kl
from grpo.config.training import TrainingSettings
from grpo.errors import RatioError
from grpo.learner.batch import Sample
from grpo.learner.performance import Precision, autocast
from grpo.policy.transformers.adapters import without_adapters
from grpo.policy.transformers.forward.head import language_model_head
from grpo.policy.transformers.forward.passes import hidden_states, microbatches, token_batch
from grpo.policy.transformers.forward.token_batch import MaskedSequence
from grpo.policy.transformers.sharding import is_sharded_model

_MAX_LOGITS = 2**24
"""Logits in memory at once: 64 MiB in float32."""
_Head = Callable[[torch.Tensor], torch.Tensor]
"""Function from hidden states [tokens, hidden size] to logits [tokens, vocabulary]."""


class SampledSequence(MaskedSequence, Protocol):
    """Token sequence with its loss mask and the temperature that its log-probabilities are taken at."""

    @property
    def temperature(self) -> float:
        """Sampling temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probability and entropy of the loss tokens of samples, in order of samples and positions."""

    logprobs: torch.Tensor  # [loss tokens]
    entropy: torch.Tensor  # [loss tokens], nats
    processed_tokens: int
    """Tokens that went through the model. Shared prefixes count once."""
    teacher_kl: torch.Tensor | None = None  # [loss tokens], nats
    """KL(policy ‖ teacher) of the whole vocabulary before each loss token. None without a teacher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherStates:
    """Hidden states of a teacher before the loss tokens of samples, and its head, which runs without a gradient."""

    states: torch.Tensor  # [distinct, hidden size]
    place: torch.Tensor  # [loss tokens] index of each in `states`
    head: _Head


def compute_logprobs(
    model: PreTrainedModel, samples: Sequence[SampledSequence], *, teacher: TeacherStates | None = None
) -> TokenLogprobs:
    """Log-probability and entropy of each loss token at its sample's temperature, and the KL to a teacher.

    Logits are computed only for loss tokens, once per distinct (prefix, token), in chunks. The backward pass computes
    them again, so that only one chunk is in memory. The teacher's logits are computed with the policy's, chunk by
    chunk, at the same temperature.
    """
    compute = model.local_logprobs if is_sharded_model(model) else partial(local_logprobs, model)
    logprobs, entropy, processed_tokens, *rest = compute(samples, teacher)
    return TokenLogprobs(
        logprobs=logprobs,
        entropy=entropy,
        processed_tokens=int(processed_tokens),
        teacher_kl=rest[0] if rest else None,
    )


def compute_states(model: PreTrainedModel, samples: Sequence[SampledSequence]) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden state before each distinct loss token, and the index of each loss token in them."""
    states, place = model.local_states(samples) if is_sharded_model(model) else local_states(model, samples)
    return states, place


def local_states(model: PreTrainedModel, samples: Sequence[SampledSequence]) -> tuple[torch.Tensor, ...]:
    """`compute_states` of a model without sharded weights."""
    predictions = _predictions(model, samples)
    return predictions.states, predictions.place


def local_logprobs(
    model: PreTrainedModel, samples: Sequence[SampledSequence], teacher: TeacherStates | None = None
) -> tuple[torch.Tensor, ...]:
    """The fields of `TokenLogprobs` as tensors, for a model without sharded weights."""
    head = language_model_head(model)

    def score(states: torch.Tensor, temperatures: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        distribution = torch.log_softmax(head(states).float() / temperatures[:, None], dim=-1)
        logprobs = distribution.gather(1, targets[:, None])[:, 0]
        return logprobs, -(distribution.exp() * distribution).sum(dim=-1)

    predictions = _predictions(model, samples)
    rows = max(1, _MAX_LOGITS // model.config.get_text_config().vocab_size)
    tensors = (predictions.states, predictions.temperatures, predictions.targets)
    logprobs, entropies = (part.index_select(0, predictions.place) for part in _in_chunks(score, tensors, rows))
    computed = logprobs, entropies, torch.tensor(predictions.processed_tokens)
    return computed if teacher is None else (*computed, _teacher_kl(head, predictions, teacher, rows=rows))


def _in_chunks(
    score: Callable[..., tuple[torch.Tensor, ...]], tensors: tuple[torch.Tensor, ...], rows: int
) -> list[torch.Tensor]:
    """Results of `score` on all rows of tensors, computed by chunks of `rows`, again in the backward pass."""
    chunks = list(zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True))
    if len(chunks) == 1:
        return list(score(*chunks[0]))
    scored = [checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks]
    return [torch.cat(parts) for parts in zip(*scored, strict=True)]


def _teacher_kl(head: _Head, predictions: _Predictions, teacher: TeacherStates, *, rows: int) -> torch.Tensor:
    """KL(policy ‖ teacher) before each loss token, [loss tokens], computed once per pair of distinct states.

    Models of one family may pad the same vocabulary to different sizes. Then both distributions are the ones over the
    ids that both have.
    """
    (own, others), place = torch.unique(torch.stack([predictions.place, teacher.place]), dim=1, return_inverse=True)

    def divergence(
        states: torch.Tensor, teacher_states: torch.Tensor, temperatures: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        logits = head(states).float() / temperatures[:, None]
        with torch.no_grad():
            targets = teacher.head(teacher_states).float() / temperatures[:, None]
        shared = min(logits.shape[1], targets.shape[1])
        both = (torch.log_softmax(values[:, :shared], dim=-1) for values in (logits, targets))
        return (reverse_kl(*both),)

    tensors = (
        predictions.states.index_select(0, own),
        teacher.states.index_select(0, others),
        predictions.temperatures.index_select(0, own),
    )
    (distances,) = _in_chunks(divergence, tensors, max(1, rows // 2))
    return distances.index_select(0, place)


def log_distributions(model: PreTrainedModel, samples: Sequence[SampledSequence]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the whole vocabulary at each distinct loss token, [distinct, vocabulary], and their counts.

    Equal loss tokens after the same tokens, at the same temperature, count as one distinct token.
    """
    predictions = _predictions(model, samples)
    logits = language_model_head(model)(predictions.states).float()
    distributions = torch.log_softmax(logits / predictions.temperatures[:, None], dim=-1)
    return distributions, torch.bincount(predictions.place, minlength=len(distributions))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predictions:
    """Hidden state before each distinct loss token, its temperature and its id.

    Equal loss tokens after the same tokens, at the same temperature, count as one distinct token.
    """

    states: torch.Tensor  # [distinct, hidden size]
    temperatures: torch.Tensor  # [distinct]
    targets: torch.Tensor  # [distinct]
    place: torch.Tensor  # [loss tokens] index of each in the others
    processed_tokens: int


def _predictions(model: PreTrainedModel, samples: Sequence[SampledSequence]) -> _Predictions:
    batch = token_batch(model, samples)
    lengths = torch.tensor([int(sample.loss_mask.sum()) for sample in samples])
    temperatures = torch.tensor([sample.temperature for sample in samples]).repeat_interleave(lengths).to(model.device)
    levels, level = torch.unique(temperatures, return_inverse=True)
    (predictors, targets, level), place = torch.unique(
        torch.stack([batch.predictors, batch.targets, level]), dim=1, return_inverse=True
    )
    return _Predictions(
        states=hidden_states(model, batch).index_select(0, predictors),
        temperatures=levels[level],
        targets=targets,
        place=place,
        processed_tokens=batch.token_ids.numel(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """Stored values of the loss tokens of samples, in the order of `TokenLogprobs`."""

    sampler_logprobs: torch.Tensor  # [loss tokens]
    proximal_logprobs: torch.Tensor  # [loss tokens]
    advantages: torch.Tensor  # [loss tokens]
    lengths: torch.Tensor  # [samples] loss tokens of each


def loss_tokens(samples: Sequence[Sample], *, device: torch.device) -> LossTokens:
    """Collect the loss tokens of samples."""

    def collect(arrays: Sequence[NDArray[np.float32]]) -> torch.Tensor:
        parts = [array[sample.loss_mask] for sample, array in zip(samples, arrays, strict=True)]
        return torch.from_numpy(np.concatenate(parts)).to(device)

    sampler = [sample.sampler_logprobs for sample in samples]
    proximal = [s.sampler_logprobs if s.proximal_logprobs is None else s.proximal_logprobs for s in samples]
    return LossTokens(
        sampler_logprobs=collect(sampler),
        proximal_logprobs=collect(proximal),
        advantages=collect([sample.advantages for sample in samples]),
        lengths=torch.tensor([int(sample.loss_mask.sum()) for sample in samples], device=device),
    )


@torch.no_grad()
def with_proximal_logprobs(
    model: PreTrainedModel, samples: Sequence[Sample], *, precision: Precision, max_tokens: int
) -> list[Sample]:
    """Samples, in the same order, with log-probabilities under the model, which is the update's proximal policy."""
    updated: dict[int, Sample] = {}
    for micro in microbatches(model, samples, max_tokens=max_tokens):
        lengths = [int(sample.loss_mask.sum()) for sample in micro]
        with autocast(precision, model.device):
            computed = compute_logprobs(model, micro).logprobs.cpu()
        for sample, part in zip(micro, torch.split(computed, lengths), strict=True):
            logprobs = np.zeros_like(sample.sampler_logprobs)
            logprobs[sample.loss_mask] = part.numpy()
            updated[id(sample)] = replace(sample, proximal_logprobs=logprobs)
    return [updated[id(sample)] for sample in samples]


@torch.no_grad()
def sum_logprobs(model: PreTrainedModel, samples: Sequence[Sample], *, max_tokens: int) -> list[float]:
    """Sum of the loss tokens' log-probabilities of each sample, in nats, in the order of the samples."""
    sums: dict[int, float] = {}
    for micro in microbatches(model, samples, max_tokens=max_tokens):
        lengths = [int(sample.loss_mask.sum()) for sample in micro]
        parts = torch.split(compute_logprobs(model, micro).logprobs.double().cpu(), lengths)
        sums.update((id(sample), float(part.sum())) for sample, part in zip(micro, parts, strict=True))
    return [sums[id(sample)] for sample in samples]


def check_ratio(distances: Sequence[tuple[float, str]], *, tolerance: float) -> None:
    """Raise `RatioError` if a row (distance of the ratio from 1, place) is beyond the tolerance or NaN."""
    bad = sorted((row for row in distances if not row[0] <= tolerance), reverse=True)
    if bad:
        raise RatioError(
            f"importance ratio before the first step is off by up to {bad[0][0]:.2e} in {len(bad)} of "
            f"{len(distances)} rows (tolerance {tolerance:.0e}), first {', '.join(row[1] for row in bad[:3])}, "
            "because the rollout was not sampled by these weights, or not at the stored temperature"
        )


def check_mismatch(distance: float, settings: TrainingSettings) -> None:
    """Raise `RatioError` if the sampler's `distance` exceeds `max_mismatch_kl` nats per token or is NaN."""
    if not distance <= settings.max_mismatch_kl:
        raise RatioError(
            f"the sampler is {distance:.2g} nats per token from the policy, more than training.max_mismatch_kl "
            f"{settings.max_mismatch_kl:g}, too far for importance weights. Collect the rollout with this policy"
        )


def mismatch_kl(samples: Sequence[Sample]) -> float:
    """KL(sampler ‖ policy that the update starts from) in nats per token, by k3 on the sampled tokens."""
    tokens = loss_tokens(samples, device=torch.device("cpu"))
    return float(k3(tokens.sampler_logprobs.double(), tokens.proximal_logprobs.double()).mean())


@torch.no_grad()
def reference_kl(reference: PreTrainedModel, samples: Sequence[Sample], *, max_tokens: int) -> float:
    """KL(sampler ‖ reference) in nats per token, by k3 on the sampled tokens and stored log-probabilities.

    If the model has adapters, it is its own reference, with the adapters disabled.
    """
    total, tokens = 0.0, 0
    for micro in microbatches(reference, samples, max_tokens=max_tokens):
        sampler_logprobs = loss_tokens(micro, device=torch.device("cpu")).sampler_logprobs
        with without_adapters(reference):
            reference_logprobs = compute_logprobs(reference, micro).logprobs.cpu()
        # float64, because in float32 the k3 of nearly equal values can be negative
        estimates = k3(sampler_logprobs.double(), reference_logprobs.double())
        total += float(estimates.sum())
        tokens += len(estimates)
    return total / max(1, tokens)
