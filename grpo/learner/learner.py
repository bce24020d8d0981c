"""Applies the loss and owns the optimizer."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from grpo.algorithms.catalog import choose
from grpo.algorithms.kl import k3, kl_loss
from grpo.algorithms.losses import Bounds, high_entropy_mask, importance_ratio, truncated_weight
from grpo.algorithms.reductions import Denominators, token_weights
from grpo.config.training import TrainingSettings
from grpo.errors import CapacityError, RatioError
from grpo.learner.packing import hidden_states, microbatches, pack
from grpo.learner.samples import Sample

logger = logging.getLogger(__name__)

_LOGIT_ROWS = 8192
"""Loss tokens whose logits are held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What a model says about the loss tokens of some samples, in order of samples and positions."""

    logprobs: torch.Tensor  # [loss tokens]
    entropy: torch.Tensor  # [loss tokens], nats


def score_tokens(model: PreTrainedModel, samples: Sequence[Sample]) -> TokenScores:
    """Log-probability and entropy of each loss token at its sample's temperature; logits on loss tokens only."""
    packed = pack(samples, device=model.device)
    states = hidden_states(model, packed)
    said = torch.tensor([int(sample.loss_mask.sum()) for sample in samples])
    temperatures = torch.tensor([sample.temperature for sample in samples]).repeat_interleave(said).to(model.device)
    head = model.get_output_embeddings()
    logprobs, entropies = [], []
    for rows in range(0, len(packed.targets), _LOGIT_ROWS):
        part = slice(rows, rows + _LOGIT_ROWS)
        logits = head(states[part]).float() / temperatures[part, None]
        distribution = torch.log_softmax(logits, dim=-1)
        logprobs.append(distribution.gather(1, packed.targets[part, None])[:, 0])
        entropies.append(-(distribution.exp() * distribution).sum(dim=-1))
    return TokenScores(logprobs=torch.cat(logprobs), entropy=torch.cat(entropies))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """What is known of the loss tokens of some samples before the model sees them, in the order of `TokenScores`."""

    sampler_logprobs: torch.Tensor  # [loss tokens]
    old_logprobs: torch.Tensor  # [loss tokens]
    advantages: torch.Tensor  # [loss tokens]
    lengths: torch.Tensor  # [samples] loss tokens of each


def loss_tokens(samples: Sequence[Sample], *, device: torch.device) -> LossTokens:
    """Collect the loss tokens of samples."""

    def collect(arrays: Sequence[NDArray[np.float32]]) -> torch.Tensor:
        said = [array[sample.loss_mask] for sample, array in zip(samples, arrays, strict=True)]
        return torch.from_numpy(np.concatenate(said)).to(device)

    sampler = [sample.sampler_logprobs for sample in samples]
    old = [sample.sampler_logprobs if sample.old_logprobs is None else sample.old_logprobs for sample in samples]
    return LossTokens(
        sampler_logprobs=collect(sampler),
        old_logprobs=collect(old),
        advantages=collect([sample.advantages for sample in samples]),
        lengths=torch.tensor([int(sample.loss_mask.sum()) for sample in samples], device=device),
    )


def _is_out_of_memory(error: RuntimeError) -> bool:
    """PyTorch has a class for it on accelerators only; on the CPU it is the allocator's message."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class Learner:
    """AdamW on the loss of one algorithm, with optional KL to a reference and entropy bonus."""

    def __init__(
        self, model: PreTrainedModel, settings: TrainingSettings, *, reference: PreTrainedModel | None = None
    ) -> None:
        self.model = model
        self.reference = reference
        self.settings = settings
        self.algorithm = choose(settings.algorithm, clip_low=settings.clip_low, clip_high=settings.clip_high)
        self.bounds = Bounds(low=self.algorithm.clip_low, high=self.algorithm.clip_high, dual=settings.dual_clip)
        self.microbatch_tokens = settings.microbatch_tokens
        """Most tokens in a pass; halved when memory runs out."""
        self.step_count = 0
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            weight_decay=settings.weight_decay,
        )

    def learning_rate(self, progress: float) -> float:
        """Learning rate of the next step: linear warm-up over steps, times a constant, linear or cosine fall to 0.

        `progress` is the share of the run that is done, in [0, 1).
        """
        settings = self.settings
        fall = {
            "constant": 1.0,
            "linear": 1 - progress,
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        }[settings.schedule]
        warmth = min(1.0, (self.step_count + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
        return settings.learning_rate * warmth * fall

    def step(
        self, samples: Sequence[Sample], of: Denominators, *, on_policy: bool, progress: float = 0.0
    ) -> dict[str, float]:
        """One optimizer step on these samples, at this share of the run; returns means over their loss tokens.

        With `on_policy` the importance ratio of every row must be 1 within the tolerance, on average over its tokens
        (a single unlikely token may round to 3e-5 in float32), else `RatioError` names the rows.
        """
        said = sum(int(sample.loss_mask.sum()) for sample in samples)
        sums, off = self._accumulate_within_memory(samples, of)
        if on_policy:
            self._check_ratio(off)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        rate = self.learning_rate(progress)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        self.optimizer.step()
        self.step_count += 1
        means = {name: sums[name] / said for name in ("ratio", "clip_share", "entropy")}
        return {**means, "loss": sums["loss"], "tokens": said, "gradient_norm": float(norm), "learning_rate": rate}

    def _accumulate_within_memory(
        self, samples: Sequence[Sample], of: Denominators
    ) -> tuple[dict[str, float], list[tuple[float, str]]]:
        """`_accumulate`, begun again with half the tokens a pass as long as memory runs out: the gradient is the same.

        Raises `CapacityError` when a single sequence does not fit.
        """
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            try:
                return self._accumulate(samples, of)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
            longest = max(len(sample.token_ids) for sample in samples)
            if self.microbatch_tokens <= longest:
                raise CapacityError(
                    f"a forward and backward pass of one sequence of {longest} tokens does not fit into memory; "
                    "lower rollout.max_context or take a smaller model"
                )
            self.microbatch_tokens //= 2
            logger.warning("memory ran out: begun again with training.microbatch_tokens %d", self.microbatch_tokens)

    def _accumulate(
        self, samples: Sequence[Sample], of: Denominators
    ) -> tuple[dict[str, float], list[tuple[float, str]]]:
        """Gradient of the loss, sums over the loss tokens, and how far each row's ratio is from 1."""
        settings = self.settings
        sums: dict[str, float] = defaultdict(float)
        off: list[tuple[float, str]] = []
        threshold = self._entropy_threshold(samples) if settings.entropy_share < 1 else None
        for micro in microbatches(samples, max_tokens=self.microbatch_tokens):
            known = loss_tokens(micro, device=self.model.device)
            scores = score_tokens(self.model, micro)
            log_ratio = scores.logprobs - known.old_logprobs
            ratio = importance_ratio(log_ratio, known.lengths, by_sequence=self.algorithm.ratio_by_sequence)
            losses, clipped = self.algorithm.objective(ratio, scores.logprobs, known.advantages, self.bounds)
            counts = torch.ones_like(losses)
            if threshold is not None:
                counts = (scores.entropy.detach() >= threshold).float()
                losses = losses * counts
            if settings.importance_cap is not None:
                cap = settings.importance_cap
                losses = losses * truncated_weight(known.old_logprobs, known.sampler_logprobs, cap=cap)
            if settings.beta:
                assert self.reference is not None
                with torch.no_grad():
                    reference_logprobs = score_tokens(self.reference, micro).logprobs
                losses = losses + settings.beta * kl_loss(ratio, scores.logprobs, reference_logprobs)
            weights = token_weights(known.lengths, of, reduction=self.algorithm.reduction)
            loss = (weights * losses).sum()
            if settings.entropy_coefficient:
                loss = loss - settings.entropy_coefficient * (counts * scores.entropy).sum() / of.tokens
            loss.backward()  # type: ignore[no-untyped-call]
            distances = torch.split((log_ratio.detach().exp() - 1).abs(), known.lengths.tolist())
            off += [(float(part.mean()), sample.place) for sample, part in zip(micro, distances, strict=True)]
            sums["loss"] += float(loss.detach())
            sums["ratio"] += float(ratio.detach().sum())
            sums["clip_share"] += float(clipped.sum())
            sums["entropy"] += float(scores.entropy.detach().sum())
        return sums, off

    @torch.no_grad()
    def _entropy_threshold(self, samples: Sequence[Sample]) -> float:
        """The entropy that `entropy_share` of the batch's tokens reach, whatever the batch is cut into."""
        cut = microbatches(samples, max_tokens=self.microbatch_tokens)
        entropy = torch.cat([score_tokens(self.model, micro).entropy for micro in cut])
        return float(entropy[high_entropy_mask(entropy, share=self.settings.entropy_share)].min())

    def _check_ratio(self, worst: Sequence[tuple[float, str]]) -> None:
        bad = sorted((row for row in worst if not row[0] <= self.settings.ratio_tolerance), reverse=True)
        if bad:
            raise RatioError(
                f"importance ratio before the first step is off by up to {bad[0][0]:.2e} in {len(bad)} of {len(worst)} "
                f"rows (tolerance {self.settings.ratio_tolerance:.0e}), first {', '.join(row[1] for row in bad[:3])}: "
                "the rollout was not sampled by these weights, or not at its stated temperature"
            )


@torch.no_grad()
def with_old_logprobs(model: PreTrainedModel, samples: Sequence[Sample], *, max_tokens: int) -> list[Sample]:
    """Samples with what the model itself says of their loss tokens, for a sampler that was another policy."""
    known = []
    for micro in microbatches(samples, max_tokens=max_tokens):
        lengths = [int(sample.loss_mask.sum()) for sample in micro]
        for sample, part in zip(micro, torch.split(score_tokens(model, micro).logprobs.cpu(), lengths), strict=True):
            logprobs = np.zeros_like(sample.sampler_logprobs)
            logprobs[sample.loss_mask] = part.numpy()
            known.append(replace(sample, old_logprobs=logprobs))
    return known


@torch.no_grad()
def reference_kl(reference: PreTrainedModel, samples: Sequence[Sample], *, max_tokens: int) -> float:
    """KL(sampler ‖ reference) in nats a token, k3 on the sampler's own tokens and stored log-probabilities."""
    total, tokens = 0.0, 0
    for micro in microbatches(samples, max_tokens=max_tokens):
        sampler_logprobs = loss_tokens(micro, device=torch.device("cpu")).sampler_logprobs
        reference_logprobs = score_tokens(reference, micro).logprobs.cpu()
        estimates = k3(
            sampler_logprobs.double(), reference_logprobs.double()
        )  # in float32 nearly equal ones go below 0
        total += float(estimates.sum())
        tokens += len(estimates)
    return total / max(1, tokens)
