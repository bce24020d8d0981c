"""Generalized advantage estimation, and the loss of the value function."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Values = NDArray[np.float64]


def generalized_advantages(
    rewards: Values, values: Values, *, dones: NDArray[np.bool_], bootstrap: Values, gamma: float, decay: float
) -> Values:
    """Generalized advantage estimates of T decisions (arXiv 1506.02438, equation 16).

        δ_t = r_t + γ V_{t+1} − V_t        A_t = δ_t + γ λ A_{t+1}

        r = [1 .5 .8 .3], V = [.5 .4 .6 .2], γ = .99, λ = .95
        dones [0 0 0 1] terminated   → [1.983945 1.156773 .49205 .1]
        dones [0 1 0 1] terminated   → [.99005 .1 .49205 .1]
        dones [0 0 0 1] truncated, bootstrap .7 → [2.560459 1.769759 1.143816 .793]

    All arrays are [T]. `dones` marks the last decision of each episode. The value after it is `bootstrap`: 0 if the
    episode terminated, and the value of its last state if it was truncated. γ is per decision, here per completion
    token. Raises `ValueError` if the last decision does not end an episode.
    """
    if len(dones) and not dones[-1]:
        raise ValueError("the last decision must end an episode, terminated or truncated")
    following = np.where(dones, bootstrap, np.append(values[1:], 0.0))
    deltas = rewards + gamma * following - values
    advantages = np.zeros_like(deltas)
    later = 0.0
    for step in range(len(deltas) - 1, -1, -1):
        later = deltas[step] + gamma * decay * (0.0 if dones[step] else later)
        advantages[step] = later
    return advantages


def value_loss(
    values: torch.Tensor, previous_values: torch.Tensor, returns: torch.Tensor, *, clip: float | None
) -> torch.Tensor:
    """Half the squared error per decision, or the error of the clipped value if that is larger (PPO2).

        ½ max((V − R)², (V_prev + clip(V − V_prev, ±ε) − R)²)
        V = 1, V_prev = .5, R = 2, ε = .2 → ½ · (.7 − 2)² = .845; without a clip ½ · 1 = .5

    All tensors are [tokens], and the caller reduces.
    """
    error = (values - returns).square()
    if clip is not None:
        near = previous_values + (values - previous_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return error / 2
