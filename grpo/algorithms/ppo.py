"""PPO: clipped surrogate, advantages against a critic (arXiv 1707.06347)."""

from grpo.algorithms.algorithm import Algorithm
from grpo.algorithms.losses import clipped_surrogate

PPO = Algorithm(name="ppo", objective=clipped_surrogate, reduction="token_mean", scale_by_std=True, critic=True)
