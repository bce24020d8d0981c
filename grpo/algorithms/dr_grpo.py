"""Dr. GRPO: no division by the spread or by a sequence's own length, which favour easy and long ones (2503.20783)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import clipped_surrogate

DR_GRPO = Algorithm(name="dr_grpo", objective=clipped_surrogate, reduction="constant")
