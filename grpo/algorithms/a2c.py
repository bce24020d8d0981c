"""A2C: the policy gradient, advantages against a critic, one step a rollout (arXiv 1602.01783, synchronous)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import policy_gradient

A2C = Algorithm(name="a2c", objective=policy_gradient, reduction="token_mean", scale_by_std=True, critic=True)
