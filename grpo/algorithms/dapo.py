"""DAPO: every token counts the same, and rare good tokens may rise further (arXiv 2503.14476)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import clipped_surrogate

DAPO = Algorithm(name="dapo", objective=clipped_surrogate, reduction="token_mean", scale_by_std=True, clip_high=0.28)
