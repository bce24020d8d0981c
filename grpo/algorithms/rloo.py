"""RLOO: REINFORCE, each sibling compared with the mean of the others (arXiv 2402.14740)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import policy_gradient

RLOO = Algorithm(name="rloo", objective=policy_gradient, reduction="sequence_sum", baseline="leave_one_out")
