"""How much reward is still to come: advantages against a critic's values, and what the critic learns from."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Values = NDArray[np.float64]


def generalized_advantages(
    rewards: Values, values: Values, *, ends: NDArray[np.bool_], bootstrap: Values, gamma: float, decay: float
) -> Values:
    """Generalized advantage estimates of T decisions (arXiv 1506.02438, equation 16).

        δ_t = r_t + γ V_{t+1} − V_t        A_t = δ_t + γ λ A_{t+1}

        r = [1 .5 .8 .3], V = [.5 .4 .6 .2], γ = .99, λ = .95
        ends [0 0 0 1] terminated   → [1.983945 1.156773 .49205 .1]
        ends [0 1 0 1] terminated   → [.99005 .1 .49205 .1]
        ends [0 0 0 1] truncated, bootstrap .7 → [2.560459 1.769759 1.143816 .793]

    All [T]. Nothing flows back over a decision that `ends` an episode; what follows it is worth `bootstrap`: 0 where
    it terminated, the value of its last state where it was cut off. γ is per decision, here per token of the policy's.
    Raises `ValueError` when the last decision does not end an episode.
    """
    if len(ends) and not ends[-1]:
        raise ValueError("the last decision must end an episode, terminated or truncated")
    following = np.where(ends, bootstrap, np.append(values[1:], 0.0))
    deltas = rewards + gamma * following - values
    advantages = np.zeros_like(deltas)
    later = 0.0
    for step in range(len(deltas) - 1, -1, -1):
        later = deltas[step] + gamma * decay * (0.0 if ends[step] else later)
        advantages[step] = later
    return advantages


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, *, clip: float | None
) -> torch.Tensor:
    """Half the squared error of the critic per decision, pessimistic within `clip` of its old values (PPO2).

        ½ max((V − R)², (V_old + clip(V − V_old, ±ε) − R)²)
        V = 1, V_old = .5, R = 2, ε = .2 → ½ · (.7 − 2)² = .845; without a clip ½ · 1 = .5

    All [tokens]; the caller reduces.
    """
    error = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return error / 2
