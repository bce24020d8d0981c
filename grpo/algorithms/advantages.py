"""Group-relative advantages of trajectories and of turns, and the shaping of their rewards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Baseline = Literal["group_mean", "group_median", "leave_one_out", "global_mean"]
Rewards = NDArray[np.float64]
STD_EPSILON = 1e-4


def group_advantages(
    rewards: Rewards, *, baseline: Baseline = "group_mean", scale_by_std: bool, batch: Rewards | None = None
) -> Rewards:
    """Advantages of a group of G (DeepSeekMath, arXiv 2402.03300, section 4.1.2; leave_one_out: RLOO, 2402.14740).

        A_i = (R_i − baseline) / (std R + 1e-4)      std with Bessel's correction
        [.7 .9 .6 .8] → [−.3873 1.1619 −1.1619 .3873], unscaled [−.05 .15 −.15 .05]
        leave_one_out: [−.0667 .2 −.2 .0667]         group_median of [0 1 2 10]: 1.5

    `rewards` has shape [G]. NaN marks a trajectory without a reward, which is left out of the baseline and gets NaN. If
    all rewards of a group are equal, or if it has fewer than two, its advantages are zeros. With global_mean the mean
    and standard deviation are computed over `batch`, the rewards of all groups, so that a constant group can have
    nonzero advantages too. Raises `ValueError` if `batch` is then missing.
    """
    compared = rewards if baseline != "global_mean" else batch
    if compared is None:
        raise ValueError("global_mean needs the rewards of the whole batch")
    valid = compared[~np.isnan(compared)]
    if valid.size < 2 or np.ptp(valid) == 0:
        return np.where(np.isnan(rewards), np.nan, 0.0)
    if baseline == "leave_one_out":
        centred = (rewards - valid.mean()) * valid.size / (valid.size - 1)
    else:
        centred = rewards - (np.median(valid) if baseline == "group_median" else valid.mean())
    return centred / (valid.std(ddof=1) + STD_EPSILON) if scale_by_std else centred


def maximum_likelihood_advantages(rewards: Rewards) -> Rewards:
    """Advantages of a group of G under maximum likelihood (MaxRL, arXiv 2602.02710): A_i = (R_i − mean R) / mean R.

    For rewards of 0 and 1 the expected gradient of the group is the gradient of the success probability p, weighted by
    a part of the series of 1/p, which is the weight of log p:

        E[1/G Σ A_i ∇log π_i] = Σ_{k=0}^{G−2} (1 − p)^k ∇p        G = 2: ∇p as in RLOO,  G → ∞: ∇log p
        [1 0 0 0] → [3 −1 −1 −1],  [1 1 1 0] → [⅓ ⅓ ⅓ −1],  [0 0 0 0] → zeros

    `rewards` has shape [G]. NaN marks a trajectory without a reward, which is left out of the mean and gets NaN. Raises
    `ValueError` if a reward is below 0, because the mean could then be 0 or reverse the signs.
    """
    valid = rewards[~np.isnan(rewards)]
    if (valid < 0).any():
        raise ValueError(f"a reward of {valid.min():g} is below 0, which a division by the mean does not allow")
    if valid.size < 2 or np.ptp(valid) == 0:
        return np.where(np.isnan(rewards), np.nan, 0.0)
    return (rewards - valid.mean()) / valid.mean()


def turn_advantages(
    turn_rewards: Sequence[ArrayLike],
    terminal_rewards: Rewards,
    *,
    baseline: Baseline = "group_mean",
    scale_by_std: bool,
) -> list[Rewards]:
    """Advantages of each turn of each trajectory (MT-GRPO, arXiv 2505.11821): returns compared turn by turn.

    The return of turn k is the sum of the rewards of turn k and all later turns, plus the terminal reward. Its baseline
    is computed over the trajectories that reached turn k. If only one trajectory reached a turn, its advantage is 0.

        turns [1 0], [0 0], terminal [0 1] → returns [1 0], [1 1] → turn 0: [0 0], turn 1: [−.5 .5]
    """
    returns = [
        np.cumsum(np.asarray(rewards, dtype=np.float64)[::-1])[::-1] + terminal
        for rewards, terminal in zip(turn_rewards, terminal_rewards, strict=True)
    ]
    advantages = [np.zeros_like(values) for values in returns]
    for turn in range(max(map(len, returns), default=0)):
        reached = [index for index, values in enumerate(returns) if len(values) > turn]
        column = np.array([returns[index][turn] for index in reached])
        compared = group_advantages(column, baseline=baseline, scale_by_std=scale_by_std)
        for index, advantage in zip(reached, compared, strict=True):
            advantages[index][turn] = advantage
    return advantages


def state_advantages(
    states: Sequence[Sequence[str]],
    turn_rewards: Sequence[ArrayLike],
    terminal_rewards: Rewards,
    *,
    discount: float,
    history: int = 0,
    baseline: Baseline = "group_mean",
    scale_by_std: bool,
) -> list[Rewards]:
    """Advantages of each turn among the turns that were taken in the same state (GiGPO, arXiv 2505.10978, equation 7).

    The return of turn k is its reward plus `discount` times the return of the next turn. The terminal reward is added
    to the last turn. The baseline is computed over all turns in the same state, of this and of other trajectories. If a
    state occurred only once, the advantage of its turn is 0.

        states [s t], [s t t], terminal [0 1], discount .5 → returns [0 0], [.25 .5 1]
        s: 0 and .25, mean .125; t: 0, .5 and 1, mean .5 → [−.125 −.5], [.125 0 .5]

    With `history`, turns in the same state are compared once more for each h from 1 to `history`, and then only if the
    h states before them are the same too (HGPO, arXiv 2602.22817). The advantage is the mean over h with weights h + 1,
    without the h at which the turn has nothing to be compared with.

        history 1: s as before; t after s: 0 and .5, mean .25; t after t: only once
        (−.5 + 2 · −.25) / 3 = −.333, (0 + 2 · .25) / 3 = .167 → [−.125 −.333], [.125 .167 .5]
    """
    returns = [
        _discounted(np.asarray(rewards, dtype=np.float64), terminal, discount)
        for rewards, terminal in zip(turn_rewards, terminal_rewards, strict=True)
    ]
    sums, weights = ([np.zeros_like(values) for values in returns] for _ in range(2))
    for depth in range(history + 1):
        for members in _in_one_state(states, depth):
            column = np.array([returns[index][turn] for index, turn in members])
            compared = group_advantages(column, baseline=baseline, scale_by_std=scale_by_std)
            for (index, turn), advantage in zip(members, compared, strict=True):
                sums[index][turn] += (depth + 1) * advantage
                weights[index][turn] += depth + 1
    return [total / np.maximum(weight, 1) for total, weight in zip(sums, weights, strict=True)]


def _in_one_state(states: Sequence[Sequence[str]], depth: int) -> Iterator[list[tuple[int, int]]]:
    """Turns in the same state after the same `depth` states, as trajectory and turn, where there are at least two.

    In the first turns, which have fewer states before them, all states from the beginning are the same.
    """
    places: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for index, digests in enumerate(states):
        for turn in range(len(digests)):
            places.setdefault(tuple(digests[max(turn - depth, 0) : turn + 1]), []).append((index, turn))
    return (members for members in places.values() if len(members) > 1)


def _discounted(rewards: Rewards, terminal: float, discount: float) -> Rewards:
    """Discounted return of each turn."""
    returns, later = np.zeros_like(rewards), terminal
    for turn in range(len(rewards) - 1, -1, -1):
        later = returns[turn] = rewards[turn] + (later if turn == len(rewards) - 1 else discount * later)
    return returns


def clip_rewards(rewards: Rewards, limit: float) -> Rewards:
    """Rewards clipped to [−limit, limit]. NaN stays NaN."""
    return np.clip(rewards, -limit, limit)


def overlong_penalty(tokens: NDArray[np.int64], *, limit: int, buffer: int) -> Rewards:
    """Soft penalty of replies that come close to the limit (DAPO, arXiv 2503.14476, equation 13).

    It is 0 up to limit − buffer tokens and falls to −1 at the limit. Limit 100, buffer 20: 80 → 0, 90 → −.5, 120 → −1.
    """
    return -np.clip((tokens - (limit - buffer)) / buffer, 0.0, 1.0)
