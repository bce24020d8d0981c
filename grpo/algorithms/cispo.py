"""CISPO: the weight is capped, and no token loses its gradient (arXiv 2506.13585)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import capped_policy_gradient

CISPO = Algorithm(
    name="cispo", objective=capped_policy_gradient, reduction="token_mean", scale_by_std=True, clip_high=5.0
)
