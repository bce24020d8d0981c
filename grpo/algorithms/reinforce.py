"""REINFORCE with the mean of the batch as baseline (Williams 1992)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import policy_gradient

REINFORCE = Algorithm(name="reinforce", objective=policy_gradient, reduction="sequence_sum", baseline="global_mean")
