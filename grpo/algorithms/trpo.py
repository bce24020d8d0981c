"""TRPO: the natural gradient of the surrogate, as far as a bound on the KL divergence allows (arXiv 1502.05477)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import unclipped_surrogate

TRPO = Algorithm(
    name="trpo", objective=unclipped_surrogate, reduction="sequence_mean", scale_by_std=True, update="trust_region"
)
