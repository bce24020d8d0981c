"""Applies the loss and owns the optimizer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from grpo.algorithms.kl import k3, kl_loss
from grpo.algorithms.losses import clipped_surrogate, sequence_mean_weights
from grpo.config.training import TrainingSettings
from grpo.errors import RatioError
from grpo.learner.packing import hidden_states, microbatches, pack
from grpo.learner.samples import Sample

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


def loss_tokens(samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sampler log-probabilities and advantages [loss tokens], and how many of them each sample has."""
    logprobs = np.concatenate([sample.sampler_logprobs[sample.loss_mask] for sample in samples])
    lengths = np.array([int(sample.loss_mask.sum()) for sample in samples])
    advantages = np.repeat([sample.advantage for sample in samples], lengths).astype(np.float32)
    return torch.from_numpy(logprobs), torch.from_numpy(advantages), torch.from_numpy(lengths)


class Learner:
    """AdamW on the clipped surrogate, with optional KL to a reference and entropy bonus."""

    def __init__(
        self, model: PreTrainedModel, settings: TrainingSettings, *, reference: PreTrainedModel | None = None
    ) -> None:
        self.model = model
        self.reference = reference
        self.settings = settings
        self.step_count = 0
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            weight_decay=settings.weight_decay,
        )

    def learning_rate(self) -> float:
        """Learning rate of the next step: linear warm-up, then constant, linear or cosine fall to 0 over the run."""
        settings = self.settings
        steps, warmup = settings.iterations * settings.steps_per_rollout, settings.warmup_steps
        if self.step_count < warmup:
            return settings.learning_rate * (self.step_count + 1) / warmup
        progress = min(1.0, (self.step_count - warmup) / max(1, steps - warmup))
        factor = {
            "constant": 1.0,
            "linear": 1 - progress,
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        }[settings.schedule]
        return settings.learning_rate * factor

    def step(self, samples: Sequence[Sample], *, sample_count: int, on_policy: bool) -> dict[str, float]:
        """One optimizer step on these samples; returns means over their loss tokens.

        `sample_count` is the denominator of the mean over sequences, which is the same however the batch is cut.
        With `on_policy` the importance ratio of every row must be 1 within the tolerance, on average over its tokens
        (a single unlikely token may round to 3e-5 in float32), else `RatioError` names the rows.
        """
        settings = self.settings
        sums: dict[str, float] = defaultdict(float)
        worst: list[tuple[float, str]] = []
        self.optimizer.zero_grad(set_to_none=True)
        for micro in microbatches(samples, max_tokens=settings.microbatch_tokens):
            sampler_logprobs, advantages, lengths = (part.to(self.model.device) for part in loss_tokens(micro))
            scores = score_tokens(self.model, micro)
            losses, ratio, clipped = clipped_surrogate(
                scores.logprobs, sampler_logprobs, advantages, clip_low=settings.clip_low, clip_high=settings.clip_high
            )
            if settings.beta:
                assert self.reference is not None
                with torch.no_grad():
                    reference_logprobs = score_tokens(self.reference, micro).logprobs
                losses = losses + settings.beta * kl_loss(scores.logprobs, sampler_logprobs, reference_logprobs)
            if settings.entropy_coefficient:
                losses = losses - settings.entropy_coefficient * scores.entropy
            weights = sequence_mean_weights(lengths) * (len(micro) / sample_count)
            loss = (weights * losses).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            if on_policy:
                off = (ratio.detach() - 1).abs()
                for sample, part in zip(micro, torch.split(off, lengths.tolist()), strict=True):
                    worst.append((float(part.mean()), sample.place))
            sums["loss"] += float(loss.detach())
            sums["ratio"] += float(ratio.detach().sum())
            sums["clip_share"] += float(clipped.sum())
            sums["entropy"] += float(scores.entropy.detach().sum())
            sums["tokens"] += len(losses)
        self._check_ratio(worst)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm)
        rate = self.learning_rate()
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        self.optimizer.step()
        self.step_count += 1
        tokens = sums["tokens"]
        means = {name: sums[name] / tokens for name in ("ratio", "clip_share", "entropy")}
        return {**means, "loss": sums["loss"], "tokens": tokens, "gradient_norm": float(norm), "learning_rate": rate}

    def _check_ratio(self, worst: Sequence[tuple[float, str]]) -> None:
        bad = sorted((row for row in worst if not row[0] <= self.settings.ratio_tolerance), reverse=True)
        if bad:
            raise RatioError(
                f"importance ratio before the first step is off by up to {bad[0][0]:.2e} in {len(bad)} of {len(worst)} "
                f"rows (tolerance {self.settings.ratio_tolerance:.0e}), first {', '.join(row[1] for row in bad[:3])}: "
                "the rollout was not sampled by these weights, or not at its stated temperature"
            )


@torch.no_grad()
def reference_kl(reference: PreTrainedModel, samples: Sequence[Sample], *, max_tokens: int) -> float:
    """KL(sampler ‖ reference) in nats a token, k3 on the sampler's own tokens and stored log-probabilities."""
    total, tokens = 0.0, 0
    for micro in microbatches(samples, max_tokens=max_tokens):
        sampler_logprobs, _, _ = loss_tokens(micro)
        reference_logprobs = score_tokens(reference, micro).logprobs.cpu()
        estimates = k3(
            sampler_logprobs.double(), reference_logprobs.double()
        )  # in float32 nearly equal ones go below 0
        total += float(estimates.sum())
        tokens += len(estimates)
    return total / max(1, tokens)
