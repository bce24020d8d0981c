"""How much better a trajectory did than its siblings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STD_EPSILON = 1e-4


def group_advantages(rewards: NDArray[np.float64], *, scale_by_std: bool) -> NDArray[np.float64]:
    """Group-relative advantage of G siblings (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

        A_i = (R_i − mean R) / (std R + 1e-4)      std with Bessel's correction
        [.7 .9 .6 .8] → [−.3873 1.1619 −1.1619 .3873], unscaled [−.05 .15 −.15 .05]

    `rewards` [G]; NaN marks a sibling without a reward: it is left out of the baseline and gets NaN. A group whose
    rewards are all equal, or with fewer than two of them, gives zeros.
    """
    valid = rewards[~np.isnan(rewards)]
    if valid.size < 2 or np.ptp(valid) == 0:
        return np.where(np.isnan(rewards), np.nan, 0.0)
    centred = rewards - valid.mean()
    return centred / (valid.std(ddof=1) + STD_EPSILON) if scale_by_std else centred
