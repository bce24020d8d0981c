"""Learner: forward and backward passes of the loss, and the optimizer.

It takes one optimizer step on one minibatch at a time. Everything else comes from other modules: advantages from
`grpo.learner.credit_assignment`, the loss of each token from `grpo.algorithms.losses`, and epochs and minibatches from
`grpo.learner.engines`.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import nn
from transformers import PreTrainedModel

from grpo.algorithms.catalog import make_algorithm
from grpo.algorithms.kl import k3, kl_loss
from grpo.algorithms.losses import (
    ClipRange,
    high_entropy_mask,
    importance_ratio,
    sequence_mask,
    truncated_importance_weight,
)
from grpo.algorithms.reductions import Denominators, token_weights
from grpo.config.training import TrainingSettings
from grpo.errors import CapacityError, Diverged
from grpo.learner.batch import Sample
from grpo.learner.distillation import Teacher, taught_tokens
from grpo.learner.distributed import ProcessGroup
from grpo.learner.logprobs import check_mismatch, check_ratio, compute_logprobs, loss_tokens
from grpo.learner.performance import activation_checkpointing, autocast, loss_scaler
from grpo.policy.transformers.adapters import without_adapters
from grpo.policy.transformers.forward.passes import is_out_of_memory, microbatches
from grpo.policy.transformers.sharding import gather_full, is_sharded

logger = logging.getLogger(__name__)


class Learner:
    """AdamW on the loss of one algorithm, with optional distillation, KL penalty and entropy bonus.

    If the `reference` has adapters, it is the policy itself, evaluated with the adapters disabled. Each process of
    `process_group` takes its part of a batch, and the gradients are summed. If the `model` runs its passes in bfloat16,
    `master` holds the weights in float32. Then the gradients are summed in `master`, and after each step its weights
    are rounded into the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: TrainingSettings,
        *,
        master: PreTrainedModel | None = None,
        reference: PreTrainedModel | None = None,
        teacher: Teacher | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.model = model
        self.master = master or model
        self.reference = reference
        self.teacher = teacher
        self.settings = settings
        self.process_group = process_group or ProcessGroup()
        self.algorithm = make_algorithm(settings.algorithm, clip_low=settings.clip_low, clip_high=settings.clip_high)
        self.clip_range = ClipRange(low=self.algorithm.clip_low, high=self.algorithm.clip_high, dual=settings.dual_clip)
        self.microbatch_tokens = settings.microbatch_tokens
        """Maximum number of tokens in a forward pass. It is halved when memory runs out."""
        self.step_count = 0
        self.parameters = [parameter for parameter in self.master.parameters() if parameter.requires_grad]
        self._trains_shards = any(map(is_sharded, self.parameters))
        """False with replicated weights, and with adapters, which each process holds whole."""
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            weight_decay=settings.weight_decay,
            fused=True,  # one pass over memory. Without it a step of 135 M weights takes five times as long
        )
        self.scaler = loss_scaler(settings.precision, model.device)

    def learning_rate(self, progress: float) -> float:
        """Learning rate of the next step: linear warm-up over steps, times a constant, linear or cosine decay to 0.

        `progress` is the finished share of the run, in [0, 1).
        """
        settings = self.settings
        decay = {
            "constant": 1.0,
            "linear": 1 - progress,
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        }[settings.lr_scheduler_type]
        warmup = min(1.0, (self.step_count + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
        return settings.learning_rate * warmup * decay

    def step(
        self,
        samples: Sequence[Sample],
        denominators: Denominators,
        *,
        on_policy: bool,
        only_step: bool = False,
        progress: float = 0.0,
    ) -> dict[str, float]:
        """Take one optimizer step on these samples, and return means over their loss tokens.

        `only_step` says that this is the only step of an update, so that it starts from the proximal policy. With an
        importance sampling cap, the proximal log-probabilities then come from the same pass, and `RatioError` is raised
        if the KL divergence to the sampler exceeds `max_mismatch_kl`.

        With `on_policy` the importance ratio of every row must be 1 within the tolerance. Otherwise `RatioError` names
        the rows. The mean of |ratio − 1| over a row's tokens is compared.
        """
        tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
        is_proximal = only_step and self.settings.importance_sampling_cap is not None
        sums, distances = self._gradient(samples, denominators, is_proximal=is_proximal)
        if on_policy:
            check_ratio(distances, tolerance=self.settings.ratio_tolerance)
        if is_proximal:
            check_mismatch(sums["mismatch_kl"] / tokens, self.settings)
        while not self._is_finite(sums["loss"]):
            sums, _ = self._gradient(samples, denominators, is_proximal=is_proximal)
        step = self.optimizer_step(samples, denominators, progress=progress)
        self.step_count += 1
        names = ("ratio", "clip_share", "entropy", "masked_share", *(("mismatch_kl",) if is_proximal else ()))
        means = {name: sums[name] / tokens for name in names}
        if self.teacher is not None:
            means["taught_share"] = sums["taught"] / tokens
            means["teacher_kl"] = sums["teacher_kl"] / max(1.0, sums["taught"])
        return {**means, "loss": sums["loss"], "tokens": tokens, "processed_tokens": sums["processed_tokens"], **step}

    def _is_finite(self, loss: float) -> bool:
        """True if loss and gradient are finite. After an fp16 overflow it halves the loss scale and returns False.

        The caller then computes the gradient again. Raises `Diverged` if a smaller scale cannot help.
        """
        self.scaler.unscale_(self.optimizer)
        norm = float(gather_full(nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])))
        if math.isfinite(norm) and math.isfinite(loss):
            return True
        if not self.scaler.is_enabled() or not math.isfinite(loss) or self.scaler.get_scale() < 1:
            raise Diverged(
                f"step {self.step_count} has loss {loss:g} and gradient norm {norm:g} (scale "
                f"{self.scaler.get_scale():g}). Lower training.learning_rate, raise training.beta, or "
                "narrow the clip range"
            )
        self.scaler.update()
        return False

    def optimizer_step(
        self, samples: Sequence[Sample], denominators: Denominators, *, progress: float
    ) -> dict[str, float]:
        """Update the weights by their accumulated gradient, and return its norm and the learning rate."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        rate = self.learning_rate(progress)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._round_into_model()
        return {"gradient_norm": float(gather_full(norm)), "learning_rate": rate}

    def _add_to_master(self) -> None:
        """Move the gradients of the model's passes to the float32 weights."""
        if self.model is self.master:
            return
        for held, master in zip(self.model.parameters(), self.master.parameters(), strict=True):
            if held.grad is not None:
                gradient, held.grad = held.grad.float(), None
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)

    @torch.no_grad()
    def _round_into_model(self) -> None:
        """Copy the float32 weights into the model that runs the passes."""
        if self.model is not self.master:
            torch._foreach_copy_(list(self.model.parameters()), list(self.master.parameters()))

    def microbatches(self, samples: Sequence[Sample]) -> Sequence[list[Sample]]:
        """This process's microbatches. The batch is split until each process, or each distinct sequence, has one."""
        budget = self.microbatch_tokens
        split = microbatches(self.model, samples, max_tokens=budget)
        while len(split) < min(self.process_group.size, len({sample.token_ids.tobytes() for sample in samples})):
            budget //= 2
            split = microbatches(self.model, samples, max_tokens=budget)
        return self.process_group.shard(split)

    def _gradient(
        self, samples: Sequence[Sample], denominators: Denominators, *, is_proximal: bool
    ) -> tuple[dict[str, float], list[tuple[float, str]]]:
        """Accumulate the gradient; returns sums over the loss tokens, and (mean |ratio − 1|, place) rows.

        If memory runs out, it starts again with half the tokens per pass, which does not change the gradient. Raises
        `CapacityError` if a single sequence does not fit, or if memory runs out with sharded weights.
        """
        threshold = self._entropy_threshold(samples) if self.settings.top_entropy_quantile < 1 else None
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            self.model.zero_grad(set_to_none=True)
            try:
                with activation_checkpointing(self.model) if self.settings.gradient_checkpointing else nullcontext():
                    accumulated = self._accumulate(samples, denominators, threshold=threshold, is_proximal=is_proximal)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self.settings.sharding == "sharded":
                    raise CapacityError(
                        f"memory ran out with training.microbatch_tokens {self.microbatch_tokens} in one of the "
                        "processes that share the weights. Lower it"
                    ) from error
                accumulated = None
            if not self.process_group.any(accumulated is None) and accumulated is not None:
                break
            longest = max(len(sample.token_ids) for sample in samples)
            if self.microbatch_tokens <= longest:
                raise CapacityError(
                    f"a forward and backward pass of one sequence of {longest} tokens does not fit into memory. "
                    "Lower rollout.max_context or use a smaller model"
                )
            self.microbatch_tokens //= 2
            logger.warning("out of memory: retrying with training.microbatch_tokens %d", self.microbatch_tokens)
        if not self._trains_shards:  # FSDP has summed the gradients of shards
            self.process_group.sum_gradients(self.parameters)
        sums: dict[str, float] = defaultdict(float)
        for part in self.process_group.gather([accumulated[0]]):
            for name, value in part.items():
                sums[name] += value
        return sums, self.process_group.gather(accumulated[1])

    def _accumulate(
        self, samples: Sequence[Sample], denominators: Denominators, *, threshold: float | None, is_proximal: bool
    ) -> tuple[dict[str, float], list[tuple[float, str]]]:
        """This process's part of `_gradient`."""
        sums: dict[str, float] = defaultdict(float)
        distances: list[tuple[float, str]] = []
        own_microbatches = self.microbatches(samples)
        padding_passes = self._padding_passes(len(own_microbatches))
        for micro in own_microbatches:
            with autocast(self.settings.precision, self.model.device):
                loss, log_ratio, more = self.loss(micro, denominators, threshold=threshold, is_proximal=is_proximal)
            self._backward(loss)
            lengths = [int(sample.loss_mask.sum()) for sample in micro]
            rows = torch.split((log_ratio.exp() - 1).abs(), lengths)
            distances += [(float(row.mean()), sample.place) for sample, row in zip(micro, rows, strict=True)]
            sums["loss"] += float(loss.detach())
            for name, value in more.items():
                sums[name] += value
        for _ in range(padding_passes):
            with autocast(self.settings.precision, self.model.device):
                self._backward(0 * self.loss(samples[:1], denominators)[0])
        return sums, distances

    def _padding_passes(self, own: int) -> int:
        """Number of passes with weight 0. Sharded layers are gathered, so all processes must make as many passes."""
        return max(self.process_group.gather([own])) - own if self.settings.sharding == "sharded" else 0

    def _backward(self, loss: torch.Tensor) -> None:
        """Add to the gradient.

        For shards the loss is multiplied by the number of processes, because FSDP averages over them.
        """
        factor = self.process_group.size if self._trains_shards else 1
        self.scaler.scale(factor * loss).backward()  # type: ignore[no-untyped-call]
        self._add_to_master()

    def loss(
        self,
        samples: Sequence[Sample],
        denominators: Denominators,
        *,
        threshold: float | None = None,
        is_proximal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
        """Part of the loss of these samples, log-ratios [loss tokens], and sums over the loss tokens.

        With a distillation weight w, the loss of a token is (1 − w) times the policy gradient's, plus w times
        KL(policy ‖ teacher) if its sample has a teacher. The divergence is exact at each token, so importance weights,
        which correct a sampled token, are not applied to it. The KL penalty and the entropy bonus keep their own
        weights.

        Tokens with an entropy below `threshold` have no loss. If `is_proximal`, the current policy is the one that the
        update starts from, so its own log-probabilities are the proximal ones.
        """
        settings = self.settings
        tokens = loss_tokens(samples, device=self.model.device)
        policy = compute_logprobs(
            self.model, samples, teacher=None if self.teacher is None else self.teacher.read(samples)
        )
        proximal = policy.logprobs.detach() if is_proximal else tokens.proximal_logprobs
        log_ratio = policy.logprobs - proximal
        ratio = importance_ratio(log_ratio, tokens.lengths, by_sequence=self.algorithm.ratio_by_sequence)
        losses, clipped = self.algorithm.objective(ratio, policy.logprobs, tokens.advantages, self.clip_range)
        mask = torch.ones_like(losses)
        masked = 0.0
        if threshold is not None:
            mask = (policy.entropy.detach() >= threshold).float()
            losses = losses * mask
        if settings.importance_sampling_cap is not None:
            cap = settings.importance_sampling_cap
            losses = losses * truncated_importance_weight(proximal, tokens.sampler_logprobs, cap=cap)
        if settings.importance_sampling_mask is not None:
            kept = sequence_mask(
                proximal, tokens.sampler_logprobs, tokens.lengths, bound=settings.importance_sampling_mask
            )
            mask, losses = mask * kept, losses * kept
            masked = float((kept == 0).sum())
        distilled: dict[str, float] = {}
        if settings.distillation is not None:
            assert policy.teacher_kl is not None
            weight, taught = settings.distillation.distillation_weight, taught_tokens(samples, device=losses.device)
            losses = (1 - weight) * losses + weight * mask * taught * policy.teacher_kl
            sums_of = {"taught": taught, "teacher_kl": taught * policy.teacher_kl.detach()}
            distilled = {name: float(values.sum()) for name, values in sums_of.items()}
        if settings.beta:
            assert self.reference is not None
            with torch.no_grad(), without_adapters(self.reference):
                reference_logprobs = compute_logprobs(self.reference, samples).logprobs
            losses = losses + settings.beta * kl_loss(ratio, policy.logprobs, reference_logprobs)
        weights = token_weights(tokens.lengths, denominators, reduction=self.algorithm.reduction)
        loss = (weights * losses).sum()
        if settings.entropy_coefficient:
            loss = loss - settings.entropy_coefficient * (mask * policy.entropy).sum() / denominators.tokens
        sums = {
            "ratio": float(ratio.detach().sum()),
            "clip_share": float(clipped.sum()),
            "mismatch_kl": float(k3(tokens.sampler_logprobs.double(), proximal.double()).sum()),
            "masked_share": masked,
            "entropy": float(policy.entropy.detach().sum()),
            "processed_tokens": float(policy.processed_tokens),
            **distilled,
        }
        return loss, log_ratio.detach(), sums

    @torch.no_grad()
    def _entropy_threshold(self, samples: Sequence[Sample]) -> float:
        """Entropy that a share `top_entropy_quantile` of all tokens in the batch reaches, whatever the microbatches."""
        own_microbatches = self.microbatches(samples)
        padding_passes = self._padding_passes(len(own_microbatches))
        with autocast(self.settings.precision, self.model.device):
            parts = [compute_logprobs(self.model, micro).entropy.cpu() for micro in own_microbatches]
            for _ in range(padding_passes):
                compute_logprobs(self.model, samples[:1])
        entropy = torch.cat(self.process_group.gather(parts))
        return float(entropy[high_entropy_mask(entropy, share=self.settings.top_entropy_quantile)].min())
