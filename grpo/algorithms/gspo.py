"""GSPO: one ratio a sequence, with a narrow clip (arXiv 2507.18071)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import clipped_surrogate

GSPO = Algorithm(
    name="gspo",
    objective=clipped_surrogate,
    reduction="sequence_mean",
    scale_by_std=True,
    clip_low=3e-4,
    clip_high=4e-4,
    ratio_by_sequence=True,
)
