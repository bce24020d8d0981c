from __future__ import annotations

import numpy as np
import pytest
import torch

from grpo.algorithms.value import generalized_advantages, value_loss

REWARDS = np.array([1.0, 0.5, 0.8, 0.3])
VALUES = np.array([0.5, 0.4, 0.6, 0.2])


@pytest.mark.parametrize(
    ("dones", "bootstrap", "advantages"),
    [
        # backwards: .3 − .2 = .1; .8 + .99·.2 − .6 = .398, + .9405·.1 = .49205; …
        ([0, 0, 0, 1], 0.0, [1.983945, 1.156773, 0.49205, 0.1]),
        # two episodes: nothing flows over the first end; .5 − .4 = .1; 1 + .99·.4 − .5 = .896, + .9405·.1 = .99005
        ([0, 1, 0, 1], 0.0, [0.99005, 0.1, 0.49205, 0.1]),
        # truncated with the value .7 beyond the end: .3 + .99·.7 − .2 = .793
        ([0, 0, 0, 1], 0.7, [2.560459, 1.769759, 1.143816, 0.793]),
    ],
)
def test_advantages_look_ahead_to_the_end_of_the_episode(dones: list[int], bootstrap: float, advantages: list[float]):
    """γ = .99, λ = .95."""
    estimates = generalized_advantages(
        REWARDS, VALUES, dones=np.array(dones, dtype=bool), bootstrap=np.full(4, bootstrap), gamma=0.99, decay=0.95
    )
    assert estimates == pytest.approx(advantages, abs=1e-6)
    assert estimates.dtype == np.float64


def test_an_episode_without_an_end_is_refused():
    """The value beyond the last decision is unknown."""
    with pytest.raises(ValueError, match=r"^the last decision must end an episode, terminated or truncated$"):
        generalized_advantages(
            REWARDS, VALUES, dones=np.zeros(4, dtype=bool), bootstrap=np.zeros(4), gamma=1.0, decay=1.0
        )


@pytest.mark.parametrize(
    ("clip", "loss", "gradient"),
    [
        (None, 0.5, -1.0),  # ½ (1 − 2)², slope V − R
        (0.2, 0.845, 0.0),  # V may count as at most .5 + .2 = .7: ½ (.7 − 2)², flat
        (0.8, 0.5, -1.0),  # within the clip
    ],
)
def test_a_value_that_rose_beyond_the_clip_has_a_larger_loss(clip: float | None, loss: float, gradient: float):
    """V = 1, V_prev = .5, R = 2."""
    value = torch.tensor([1.0], requires_grad=True)
    losses = value_loss(value, torch.tensor([0.5]), torch.tensor([2.0]), clip=clip)
    losses.sum().backward()
    assert losses.item() == pytest.approx(loss)
    assert value.grad is not None
    assert value.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize(("clip", "loss"), [(None, 0.5), (0.2, 0.845), (0.8, 0.5)])
def test_a_value_that_fell_beyond_the_clip_has_a_larger_loss(clip: float | None, loss: float):
    """V = 0, V_prev = .5, R = −1: V counts as at least .5 − .2 = .3, ½ (.3 + 1)²; within .8 it counts as it is."""
    losses = value_loss(torch.tensor([0.0]), torch.tensor([0.5]), torch.tensor([-1.0]), clip=clip)
    assert losses.item() == pytest.approx(loss)
