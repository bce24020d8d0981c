"""GRPO: siblings compared with their mean and spread, every sequence counts the same (arXiv 2402.03300)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import clipped_surrogate

GRPO = Algorithm(name="grpo", objective=clipped_surrogate, reduction="sequence_mean", scale_by_std=True)
