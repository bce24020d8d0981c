"""Applies the loss and owns the optimizer."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import nn
from transformers import PreTrainedModel

from grpo.algorithms.catalog import get_algorithm
from grpo.algorithms.kl import kl_loss
from grpo.algorithms.losses import ClipRange, high_entropy_mask, importance_ratio, truncated_importance_weight
from grpo.algorithms.reductions import Denominators, token_weights
from grpo.config.training import TrainingSettings
from grpo.errors import CapacityError, Diverged
from grpo.learner.batch import Sample
from grpo.learner.logprobs import check_ratio, compute_logprobs, local_logprobs, loss_tokens
from grpo.learner.memory import ran_out, recomputed_activations
from grpo.learner.packing import microbatches
from grpo.learner.precision import autocast, loss_scaler
from grpo.learner.world import ProcessGroup
from grpo.policy.transformers.adapters import without_adapters
from grpo.policy.transformers.sharding import gather_full, shard_model

logger = logging.getLogger(__name__)


class Learner:
    """AdamW on the loss of one algorithm, with optional KL to a reference and entropy bonus.

    A `reference` that carries adapters is the policy itself: it is asked with them switched off. In a `world` of
    several processes each passes its part of a batch through the model, and their gradients are added up.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: TrainingSettings,
        *,
        reference: PreTrainedModel | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.model = model
        self.reference = reference
        self.settings = settings
        self.process_group = process_group or ProcessGroup()
        self.algorithm = get_algorithm(settings.algorithm, clip_low=settings.clip_low, clip_high=settings.clip_high)
        self.clip_range = ClipRange(low=self.algorithm.clip_low, high=self.algorithm.clip_high, dual=settings.dual_clip)
        self.microbatch_tokens = settings.microbatch_tokens
        """Most tokens in a pass; halved when memory runs out."""
        self.step_count = 0
        if settings.sharding == "sharded":
            shard_model(model, local_logprobs)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            weight_decay=settings.weight_decay,
        )
        self.scaler = loss_scaler(settings.precision, model.device)

    def learning_rate(self, progress: float) -> float:
        """Learning rate of the next step: linear warm-up over steps, times a constant, linear or cosine fall to 0.

        `progress` is the share of the run that is done, in [0, 1).
        """
        settings = self.settings
        fall = {
            "constant": 1.0,
            "linear": 1 - progress,
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        }[settings.lr_scheduler_type]
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
        sums, distances = self._gradient(samples, of)
        if on_policy:
            check_ratio(distances, tolerance=self.settings.ratio_tolerance)
        while not self._is_finite(sums["loss"]):
            sums, _ = self._gradient(samples, of)
        moved = self.move(samples, of, progress=progress)
        self.step_count += 1
        means = {name: sums[name] / said for name in ("ratio", "clip_share", "entropy")}
        return {**means, "loss": sums["loss"], "tokens": said, "passed": sums["passed"], **moved}

    def _is_finite(self, loss: float) -> bool:
        """Whether the gradient can be stepped on; an fp16 overflow halves the loss scale and asks for another one.

        Raises `Diverged` where a smaller scale cannot help.
        """
        self.scaler.unscale_(self.optimizer)
        norm = float(gather_full(nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])))
        if math.isfinite(norm) and math.isfinite(loss):
            return True
        if not self.scaler.is_enabled() or not math.isfinite(loss) or self.scaler.get_scale() < 1:
            raise Diverged(
                f"step {self.step_count} has loss {loss:g} and gradient norm {norm:g} (scale "
                f"{self.scaler.get_scale():g}); lower training.learning_rate, or raise beta or the clip's strength"
            )
        self.scaler.update()
        return False

    def move(self, samples: Sequence[Sample], of: Denominators, *, progress: float) -> dict[str, float]:
        """Change the weights by the gradient that lies in them; returns its norm and the learning rate."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        rate = self.learning_rate(progress)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return {"gradient_norm": float(gather_full(norm)), "learning_rate": rate}

    def passes(self, samples: Sequence[Sample]) -> Sequence[list[Sample]]:
        """The samples of this process's forward passes; the batch is cut until each process has one."""
        budget = self.microbatch_tokens
        cut = microbatches(samples, max_tokens=budget)
        while len(cut) < min(self.process_group.size, len(samples)):
            budget //= 2
            cut = microbatches(samples, max_tokens=budget)
        return self.process_group.share(cut)

    def _gradient(
        self, samples: Sequence[Sample], of: Denominators
    ) -> tuple[dict[str, float], list[tuple[float, str]]]:
        """Leave the gradient of the loss in the weights; returns sums over the loss tokens, and how far each row's
        ratio is from 1.

        When memory runs out it is begun again with half the tokens a pass: the gradient is the same. Raises
        `CapacityError` when a single sequence does not fit, or when processes that share weights would have to agree.
        """
        threshold = self._entropy_threshold(samples) if self.settings.top_entropy_quantile < 1 else None
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            try:
                with recomputed_activations(self.model) if self.settings.gradient_checkpointing else nullcontext():
                    found = self._accumulate(samples, of, threshold=threshold)
            except RuntimeError as error:
                if not ran_out(error):
                    raise
                if self.settings.sharding == "sharded":
                    raise CapacityError(
                        f"memory ran out with training.microbatch_tokens {self.microbatch_tokens} in one of the "
                        "processes that share the weights; lower it"
                    ) from error
                found = None
            if not self.process_group.any(found is None) and found is not None:
                break
            longest = max(len(sample.token_ids) for sample in samples)
            if self.microbatch_tokens <= longest:
                raise CapacityError(
                    f"a forward and backward pass of one sequence of {longest} tokens does not fit into memory; "
                    "lower rollout.max_context or take a smaller model"
                )
            self.microbatch_tokens //= 2
            logger.warning("memory ran out: begun again with training.microbatch_tokens %d", self.microbatch_tokens)
        if self.settings.sharding == "replicated":
            self.process_group.sum_gradients(self.parameters)
        sums: dict[str, float] = defaultdict(float)
        for part in self.process_group.gather([found[0]]):
            for name, value in part.items():
                sums[name] += value
        return sums, self.process_group.gather(found[1])

    def _accumulate(
        self, samples: Sequence[Sample], of: Denominators, *, threshold: float | None
    ) -> tuple[dict[str, float], list[tuple[float, str]]]:
        """This process's part of `_gradient`."""
        sums: dict[str, float] = defaultdict(float)
        distances: list[tuple[float, str]] = []
        passes = self.passes(samples)
        for micro in passes:
            with autocast(self.settings.precision, self.model.device):
                loss, log_ratio, more = self.loss(micro, of, threshold=threshold)
            self._backward(loss)
            lengths = [int(sample.loss_mask.sum()) for sample in micro]
            rows = torch.split((log_ratio.exp() - 1).abs(), lengths)
            distances += [(float(row.mean()), sample.place) for sample, row in zip(micro, rows, strict=True)]
            sums["loss"] += float(loss.detach())
            for name, value in more.items():
                sums[name] += value
        for _ in range(self._idle_passes(len(passes))):
            with autocast(self.settings.precision, self.model.device):
                self._backward(0 * self.loss(samples[:1], of)[0])
        return sums, distances

    def _idle_passes(self, own: int) -> int:
        """Passes for company: layers are gathered from all processes, so none may pass less often than another."""
        return max(self.process_group.gather([own])) - own if self.settings.sharding == "sharded" else 0

    def _backward(self, loss: torch.Tensor) -> None:
        """Add to the gradient; sharded, it is averaged over the processes, and the sum is wanted."""
        share = self.process_group.size if self.settings.sharding == "sharded" else 1
        self.scaler.scale(share * loss).backward()  # type: ignore[no-untyped-call]

    def loss(
        self, samples: Sequence[Sample], of: Denominators, *, threshold: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
        """The samples' part of the loss, their log-ratios [loss tokens], and sums over their loss tokens.

        `threshold` is the entropy from which on tokens are learned from.
        """
        settings = self.settings
        known = loss_tokens(samples, device=self.model.device)
        scores = compute_logprobs(self.model, samples)
        log_ratio = scores.logprobs - known.proximal_logprobs
        ratio = importance_ratio(log_ratio, known.lengths, by_sequence=self.algorithm.ratio_by_sequence)
        losses, clipped = self.algorithm.objective(ratio, scores.logprobs, known.advantages, self.clip_range)
        counts = torch.ones_like(losses)
        if threshold is not None:
            counts = (scores.entropy.detach() >= threshold).float()
            losses = losses * counts
        if settings.importance_sampling_cap is not None:
            cap = settings.importance_sampling_cap
            losses = losses * truncated_importance_weight(known.proximal_logprobs, known.sampler_logprobs, cap=cap)
        if settings.beta:
            assert self.reference is not None
            with torch.no_grad(), without_adapters(self.reference):
                reference_logprobs = compute_logprobs(self.reference, samples).logprobs
            losses = losses + settings.beta * kl_loss(ratio, scores.logprobs, reference_logprobs)
        weights = token_weights(known.lengths, of, reduction=self.algorithm.reduction)
        loss = (weights * losses).sum()
        if settings.entropy_coefficient:
            loss = loss - settings.entropy_coefficient * (counts * scores.entropy).sum() / of.tokens
        sums = {
            "ratio": float(ratio.detach().sum()),
            "clip_share": float(clipped.sum()),
            "entropy": float(scores.entropy.detach().sum()),
            "passed": float(scores.passed),
        }
        return loss, log_ratio.detach(), sums

    @torch.no_grad()
    def _entropy_threshold(self, samples: Sequence[Sample]) -> float:
        """The entropy that `top_entropy_quantile` of the batch's tokens reach, whatever the batch is cut into."""
        passes = self.passes(samples)
        with autocast(self.settings.precision, self.model.device):
            parts = [compute_logprobs(self.model, micro).entropy.cpu() for micro in passes]
            for _ in range(self._idle_passes(len(passes))):
                compute_logprobs(self.model, samples[:1])
        entropy = torch.cat(self.process_group.gather(parts))
        return float(entropy[high_entropy_mask(entropy, share=self.settings.top_entropy_quantile)].min())
