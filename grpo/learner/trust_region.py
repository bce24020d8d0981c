"""Trust-region step of TRPO (arXiv 1502.05477): the natural gradient under a bound on the KL divergence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from grpo.algorithms.reductions import Denominators
from grpo.learner.batch import Sample
from grpo.learner.learner import Learner
from grpo.learner.logprobs import log_distributions

logger = logging.getLogger(__name__)
_CONVERGED = 1e-10
_Distributions = tuple[torch.Tensor, torch.Tensor]
"""Result of `log_distributions`."""


class TrustRegionLearner(Learner):
    """A learner that solves F x = g by conjugate gradients, with a backtracking line search along −x.

    F is the Fisher matrix of the policy on the batch's loss tokens, and g the gradient of the surrogate loss. A step is
    accepted if the loss falls and KL(old ‖ new) ≤ δ. The KL is exact over the whole vocabulary, in mean nats per token.
    The distributions of all distinct loss tokens before the step are kept in memory, vocabulary × 4 bytes each.
    """

    def optimizer_step(
        self, samples: Sequence[Sample], denominators: Denominators, *, progress: float
    ) -> dict[str, float]:
        """Take a trust-region step. The learning rate is the accepted step's length along x, or 0 if none was."""
        settings = self.settings.trust_region
        gradient = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None]).clone()
        start = [parameter.detach().clone() for parameter in self.parameters]
        micros = self.microbatches(samples)
        with torch.no_grad():
            old = [log_distributions(self.model, micro) for micro in micros]
            before = self._surrogate(micros, denominators)
        self.optimizer.zero_grad(set_to_none=True)
        tokens = sum(int(counts.sum()) for _, counts in old)

        def fisher(vector: torch.Tensor) -> torch.Tensor:
            product = self._fisher_product(micros, old, vector, tokens=tokens)
            return product + settings.damping * vector

        direction = conjugate_gradient(fisher, gradient, steps=settings.conjugate_gradient_steps)
        curvature = float(direction @ fisher(direction))
        length = (2 * settings.max_kl / curvature) ** 0.5 if curvature > 0 else 0.0
        for _ in range(settings.line_search_steps):
            self._set_weights(start, direction, length)
            with torch.no_grad():
                kl = self._kl(micros, old, tokens=tokens)
                after = self._surrogate(micros, denominators)
            if kl <= settings.max_kl and after < before:
                return {"gradient_norm": float(gradient.norm()), "learning_rate": length, "step_kl": kl}
            length /= 2
        logger.warning("no step within KL %g lowers the loss. The policy is unchanged", settings.max_kl)
        self._set_weights(start, direction, 0.0)
        return {"gradient_norm": float(gradient.norm()), "learning_rate": 0.0, "step_kl": 0.0}

    def _surrogate(self, micros: Sequence[list[Sample]], denominators: Denominators) -> float:
        return sum(float(self.loss(micro, denominators)[0]) for micro in micros)

    def _kl(self, micros: Sequence[list[Sample]], old: Sequence[_Distributions], *, tokens: int) -> float:
        """KL(old ‖ now), nats per token."""
        total = 0.0
        for micro, (before, counts) in zip(micros, old, strict=True):
            now, _ = log_distributions(self.model, micro)
            total += float(counts.double() @ (before.exp() * (before - now)).sum(dim=1, dtype=torch.float64))
        return total / tokens

    def _fisher_product(
        self, micros: Sequence[list[Sample]], old: Sequence[_Distributions], vector: torch.Tensor, *, tokens: int
    ) -> torch.Tensor:
        """F v = ∇(∇KL · v), taken at the old weights, because there KL is 0 and its Hessian is the Fisher matrix."""
        product = torch.zeros_like(vector)
        for micro, (before, counts) in zip(micros, old, strict=True):
            with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
                now, _ = log_distributions(self.model, micro)
                kl = (counts[:, None] * before.exp() * (before - now)).sum() / tokens
                slopes = torch.autograd.grad(kl, self.parameters, create_graph=True)
                along = torch.cat([slope.flatten() for slope in slopes]) @ vector
                product += torch.cat([part.flatten() for part in torch.autograd.grad(along, self.parameters)])
        return product

    @torch.no_grad()
    def _set_weights(self, start: Sequence[torch.Tensor], direction: torch.Tensor, length: float) -> None:
        """Set the weights to start − length · direction."""
        parts = torch.split(direction, [parameter.numel() for parameter in self.parameters])
        for parameter, origin, part in zip(self.parameters, start, parts, strict=True):
            parameter.copy_(origin - length * part.view_as(origin))


def conjugate_gradient(
    product: Callable[[torch.Tensor], torch.Tensor], target: torch.Tensor, *, steps: int
) -> torch.Tensor:
    """x with A x ≈ target, for a symmetric positive definite A given by its products (Hestenes and Stiefel 1952).

    It is exact after as many steps as A has rows: A = [[4 1] [1 3]], target [1 2] → [.0909 .6364] after 2.
    """
    solution = torch.zeros_like(target)
    residual, direction = target.clone(), target.clone()
    size = first = residual @ residual
    for _ in range(steps):
        if float(size) <= _CONVERGED * float(first):
            break
        image = product(direction)
        share = size / (direction @ image)
        solution += share * direction
        residual -= share * image
        new_size = residual @ residual
        direction = residual + (new_size / size) * direction
        size = new_size
    return solution
